#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/context.hpp"

namespace dtrain::cli {

// What of a search has changed since it was looked at last: what is printed line by line where no
// table can be drawn, and what --json streams. Pure.
class SearchNews {
 public:
  // After trial() was told of those that run and wait: of `begun` trials, those to be asked for
  // yet, numbers from and how many. Few, though one of the first trials still runs when 10,000 have
  // ended, or 10,000 are paused; these too at the search's `end`.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> wanted(std::uint64_t begun, bool end) const;
  void begin_look() { looked_at_.clear(); }
  bool knows(std::uint64_t trial) const { return open_.contains(trial); }

  // Each gives the event, if it is news: {"type": "trial", …}, {"type": "best", …} and
  // {"type": "state", …}, see docs/cli.md.
  std::optional<nlohmann::json> trial(const nlohmann::json& trial);
  std::optional<nlohmann::json> best(const nlohmann::json& search);
  std::optional<nlohmann::json> state(const nlohmann::json& search);

 private:
  std::map<std::uint64_t, std::string> open_;  // those that have not ended: state and job
  std::uint64_t next_ = 0;                     // of which nothing is known, nor of those behind it
  std::set<std::uint64_t> looked_at_;          // of them, by this look
  nlohmann::json best_;
  std::string state_;
  std::string reason_;
};

// An event for people, a line without its end; `known` where an earlier line told the parameters.
std::string news_line(const nlohmann::json& event, const std::string& metric, bool known);

// What a search stands at, for a terminal of so many columns and rows; 0: no limit. Pure, but for
// the time that it has taken. `jobs`: each trial with its job.
std::string search_picture(const nlohmann::json& search, std::size_t columns, std::size_t rows,
                           bool color, bool jobs = false);

bool trial_ended(const std::string& state) noexcept;

struct FollowedSearch {
  nlohmann::json search;  // as it was seen last
  int interrupted = 0;    // the signal that detached us; 0: followed to the end
  bool torn = false;      // within a line, whose reader has stopped
};
// A table that is drawn over in place, else a line for what has changed, until the search's end.
// `silent`: nothing of that. When the head goes away under it, waits for it. Ctrl-C detaches.
// Throws Error(unreachable) when the head stays away for a minute.
FollowedSearch follow_search(const Context& context, const wire::ApiClient& client,
                             const std::string& search, bool silent = false);
// What is said after following. Gives the exit code, by the search's state as a job's.
int finish_search(const Context& context, const std::string& search, const FollowedSearch& result);

}  // namespace dtrain::cli

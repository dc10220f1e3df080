#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"

// What a follower of a job asks for, and what the engine knows of it.
namespace dtrain::head {

struct FollowQuery {
  bool logs = true;
  bool events = true;
  bool follow = true;
  bool from = false;  // the client's first frame says where it wants to begin
  std::optional<int> rank;
  std::optional<int> attempt;
  std::optional<std::string> stream;  // out, err, or setup: what the job's setup wrote
  bool setup = false;                 // that too
  std::optional<int> tail;            // lines
};

// From the part of a request's target behind '?'. Error(invalid) names the key.
FollowQuery parse_follow_query(const std::string& query);

// Taken in one go on the engine's thread.
struct FollowSnapshot {
  struct SetupLog {
    int attempt;
    NodeId node;
    fs::path path;
  };
  nlohmann::json job;  // its state, reason and exit_code
  int newest_attempt = 0;
  bool may_write = true;
  std::vector<Engine::LogSource> sources;
  std::vector<SetupLog> setups;                     // where the query wants them
  nlohmann::json events = nlohmann::json::array();  // those that were asked for
};
// With the logs of the attempts from `first` on. Error(not_found).
FollowSnapshot follow_snapshot(const Engine& engine, const JobId& job, const FollowQuery& query,
                               int first);

// Whether what a snapshot has may change without a word on the job's state: while it waits nothing
// of it lives, so that nothing does.
bool changes_unsaid(const FollowSnapshot& now);

// The attempt whose logs come first, of a job with `newest` of them; `start` is the one from which
// the client wants to go on, 0 if it did not say.
int first_attempt_of(const FollowQuery& query, int newest, bool may_write, int start);

// Error(not_found) for a rank or an attempt that there is not; false while that cannot be known.
bool check_choice(const FollowQuery& query, const FollowSnapshot& now, const JobId& job, bool over);

}  // namespace dtrain::head

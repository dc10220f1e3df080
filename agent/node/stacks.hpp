#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// The native stacks of an attempt's ranks, taken by dtrain-profiler when the head finds that they
// get no further, and kept with the attempt's logs: a JSON line for each look at them, {"at",
// "reason", "ranks", "processes": as profiler/stacks.hpp says, "error"}, the last if one of the
// ranks is missing there, or could not be looked at. All on the executor's thread; the file is
// written on a thread of its own.
namespace dtrain::node {

// What dtrain-profiler may take. Then it is killed, and what it has said is not kept.
inline constexpr std::chrono::seconds kLookLimit{60};
// Bytes of one look, and of the file: a look that would make it larger is not kept.
inline constexpr std::size_t kStacksLimit = std::size_t{64} << 20;

class Stacks {
 public:
  // `say` passes a message on to the head; it may be dropped while there is none.
  Stacks(boost::asio::any_io_executor executor, paths::NodeRoot root,
         std::function<void(const wire::StacksTaken&)> say);
  // Ends what runs.
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // Answered by StacksTaken, at most kLookLimit and a write later. One of the same attempt that is
  // under way is given up for it.
  void take(const wire::TakeStacks& wanted);

 private:
  struct Look;
  using Key = std::pair<JobId, int>;
  void start(const std::shared_ptr<Look>& look) const;
  void read(const std::shared_ptr<Look>& look);
  void give_up(const std::shared_ptr<Look>& look, Error why);
  void over(const std::shared_ptr<Look>& look);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  std::function<void(const wire::StacksTaken&)> say_;
  std::map<Key, std::shared_ptr<Look>> looks_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker writer_;
};

struct LookLine {
  std::string line;            // ended
  bool some = false;           // it has stacks
  std::optional<Error> error;  // why those of some rank are not in it
};
// Of what dtrain-profiler has said on stdout and stderr, or of why it was given up.
LookLine look_line(const wire::TakeStacks& wanted, std::string_view said,
                   const std::optional<Error>& error);

// Appends a whole line. Throws Error(exhausted) where the file has no room for it.
void keep_look(const fs::path& file, const std::string& line);

}  // namespace dtrain::node

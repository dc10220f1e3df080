#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// The native stacks of an attempt's ranks, taken by dtrain-profiler when the head finds that they
// get no further, and kept with the attempt's logs: a JSON line for each look at them, {"at",
// "reason", "processes": as profiler/stacks.hpp says}, or {"at", "reason", "error"}.
// All on the executor's thread; the file is written on a thread of its own.
namespace dtrain::node {

// What dtrain-profiler may take. Then it is killed, and what it has said is not kept.
inline constexpr std::chrono::seconds kLookLimit{60};
// Bytes of one look, and of the file: a look that would make it larger is not kept.
inline constexpr std::size_t kStacksLimit = std::size_t{64} << 20;

class Stacks {
 public:
  // `say` passes a message on to the head; it may be dropped while there is none.
  Stacks(boost::asio::any_io_executor executor, paths::NodeRoot root,
         std::function<void(wire::NodeMessage)> say);
  // Ends what runs.
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // Answered by StacksTaken, in the end always; at most kLookLimit and a write later.
  void take(const wire::TakeStacks& wanted);

 private:
  struct Look;
  using Key = std::pair<JobId, int>;
  void start(const std::shared_ptr<Look>& look) const;
  void read(const std::shared_ptr<Look>& look);
  void over(const std::shared_ptr<Look>& look);

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  std::function<void(wire::NodeMessage)> say_;
  std::map<Key, std::shared_ptr<Look>> looks_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker writer_;
};

// The line of what dtrain-profiler has said, its words and its errors in one. Throws Error(failed)
// with what is no process of its own among that.
std::string look_line(const wire::TakeStacks& wanted, const std::string& said);
// The line of a look that failed.
std::string look_line(const wire::TakeStacks& wanted, const Error& error);

// Appends a whole line. Throws Error(exhausted) where the file has no room for it.
void keep_look(const fs::path& file, const std::string& line);

}  // namespace dtrain::node

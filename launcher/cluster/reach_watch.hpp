#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "launcher/cluster/progress.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain {

// Tells of each machine that is not reached after 5 s, and every 10 s from then on: why, and until
// when it is tried. Thread-safe.
class ReachWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kFirst{5};
  static constexpr std::chrono::seconds kAgain{10};

  // An empty sink tells nobody.
  explicit ReachWatch(ProgressSink tell) : tell_(std::move(tell)) {}

  // As Access::reaching: what is known of a machine that is being reached; absent: that is over.
  void reaching(const NodeId& node, const std::optional<ReachTry>& last);
  // Told there from now on; when this returns, no more where it was before.
  void tell(ProgressSink sink);

 private:
  struct Entry {
    ReachTry last;
    Clock::time_point next;
  };
  void watch(const std::stop_token& over);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  ProgressSink tell_;
  std::map<NodeId, Entry> entries_;
  bool has_new_ = false;  // since the thread looked
  std::jthread thread_;   // from the first machine on
};

// "not reached for 5.0 s: no answer from 10.0.0.6:22; given up after 30.0 s". Pure.
std::string not_reached_text(const ReachTry& last, ReachWatch::Clock::time_point now);

}  // namespace dtrain

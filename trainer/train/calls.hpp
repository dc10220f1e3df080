#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace dtrain::train {

// One rank's collective, where its peers cannot see it in shared memory.
struct Call {
  std::uint64_t sequence = 0;  // of this rank's group, from 1; 0: there was none
  const char* operation = "";  // "allreduce": static text
  const char* type = "";       // of the elements; static text, empty if it has none
  std::int64_t elements = 0;   // of this rank's contribution
  std::uint64_t bytes = 0;     // the same
  std::chrono::steady_clock::time_point begun{};
};

// "allreduce #12 (4096 Float)"
std::string describe(const Call& call);

// What more can be said about a call that failed: an addition to its message, or nothing. Called
// from any thread; takes at most some seconds.
using Explain = std::function<std::string(const Call&)>;

// The collectives that this rank has begun. Any thread.
class Calls {
 public:
  Call begin(const char* operation, const char* type, std::int64_t elements,
             std::uint64_t bytes = 0);
  void end(const Call& call);
  Call last() const;
  // Whether it has ended; if it is not the last one, it is taken for that.
  bool has_ended(const Call& call) const;

  // How long the training's thread has waited for calls so far.
  std::chrono::nanoseconds waited() const { return std::chrono::nanoseconds(waited_); }
  // For one, from `since` until now.
  void add_wait(std::chrono::steady_clock::time_point since);
  // From `since`, when there was nothing left to compute and waited() was `before`, until the last
  // of those that have ended had.
  void add_wait(std::chrono::steady_clock::time_point since, std::chrono::nanoseconds before);

 private:
  mutable std::mutex mutex_;
  Call last_;
  bool has_ended_ = false;                         // the last one
  std::chrono::steady_clock::time_point ended_{};  // the one that ended last
  std::atomic<std::int64_t> waited_{0};            // nanoseconds
};

}  // namespace dtrain::train

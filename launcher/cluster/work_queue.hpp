#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>

namespace dtrain {

// Numbers of what can be begun now, each for whoever comes first. Thread-safe.
class WorkQueue {
 public:
  void put(std::size_t number) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    changed_.notify_one();
  }
  // Waits for one: as many must be put as are taken.
  std::size_t take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !numbers_.empty(); });
    return pop();
  }
  // Absent when none came for `limit`, or `stop` was asked for.
  std::optional<std::size_t> take(std::chrono::milliseconds limit, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, stop, limit, [&] { return !numbers_.empty(); })) {
      return std::nullopt;
    }
    return pop();
  }

 private:
  std::size_t pop() {
    const std::size_t number = numbers_.front();
    numbers_.pop_front();
    return number;
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::size_t> numbers_;
};

}  // namespace dtrain

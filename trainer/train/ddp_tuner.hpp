#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace dtrain::train {

// Tries bucket sizes, one after the other, and keeps the fastest one.
class BucketTuner {
 public:
  // `total`: bytes of all gradients; sizes that make no other buckets than a smaller one are left
  // out.
  explicit BucketTuner(std::int64_t total) {
    for (const std::int64_t size : kSizesToTry) {
      sizes_.push_back(size);
      if (size >= total) break;
    }
    best_.assign(sizes_.size(), std::numeric_limits<double>::infinity());
  }
  // At the beginning of each step. Returns the size to go on with when it is another one.
  template <typename Agree>
  std::optional<std::int64_t> step(Agree agree) {
    const Clock::time_point now = Clock::now();
    std::optional<std::int64_t> next;
    if (steps_ > 1) {  // the first step of a size was not measured
      best_[current_] =
          std::min(best_[current_], std::chrono::duration<double>(now - began_).count());
    }
    if (steps_ == 0) next = sizes_[0];
    if (steps_ == kStepsToTry) {
      steps_ = 0;
      if (++current_ < sizes_.size()) {
        next = sizes_[current_];
      } else {
        const auto fastest = std::min_element(best_.begin(), best_.end()) - best_.begin();
        next = sizes_[static_cast<std::size_t>(agree(static_cast<std::int64_t>(fastest)))];
        done_ = true;
      }
    }
    ++steps_;
    began_ = Clock::now();
    return next;
  }
  bool done() const { return done_; }

 private:
  using Clock = std::chrono::steady_clock;
  // What tuning tries, in steps each of which the first does not count: it touches new memory.
  static constexpr std::int64_t kSizesToTry[] = {1 << 20, 4 << 20, 25 << 20, 128 << 20};
  static constexpr int kStepsToTry = 4;

  std::vector<std::int64_t> sizes_;
  std::vector<double> best_;  // seconds of a step
  std::size_t current_ = 0;
  int steps_ = 0;
  bool done_ = false;
  Clock::time_point began_;
};

}  // namespace dtrain::train

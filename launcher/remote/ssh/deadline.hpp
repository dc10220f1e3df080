#pragma once

#include <algorithm>
#include <chrono>
#include <stop_token>

#include "launcher/core/error.hpp"

namespace dtrain::ssh {

// How long a login may still take, less what a person takes to answer.
class Deadline {
 public:
  Deadline(std::chrono::milliseconds limit, std::stop_token stop)
      : until_(std::chrono::steady_clock::now() + limit), stop_(std::move(stop)) {}

  void extend(std::chrono::milliseconds by) { until_ += by; }
  std::chrono::steady_clock::time_point until() const { return until_; }
  const std::stop_token& stop() const { return stop_; }
  bool passed() const { return std::chrono::steady_clock::now() >= until_; }
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(
                                                      until_ - std::chrono::steady_clock::now()));
  }
  // For poll(2): what is left up to `limit`, at most 100 ms, so that a stop is noticed.
  int slice(std::chrono::steady_clock::time_point limit) const {
    using std::chrono::milliseconds;
    const auto left = std::chrono::duration_cast<milliseconds>(std::min(limit, until_) -
                                                               std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<long>(left.count() + 1, 0, 100));
  }
  void check_stop() const {
    if (stop_.stop_requested()) throw Error(ErrorCode::failed, "the login was given up");
  }

 private:
  std::chrono::steady_clock::time_point until_;
  std::stop_token stop_;
};

}  // namespace dtrain::ssh

#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace dtrain::node {

// How long to wait before the head is dialled again: twice as long each time, and by chance between
// half of that and all of it, so that the nodes of a cluster do not come back all at once.
class Reconnect {
 public:
  static constexpr std::chrono::milliseconds kFirst{20};
  static constexpr std::chrono::milliseconds kLast{5000};

  // The next pause is a short one: the head was there, or there is a reason to hurry.
  void begin() { longest_ = kFirst; }
  std::chrono::milliseconds next() {
    std::uniform_int_distribution<std::chrono::milliseconds::rep> some(longest_.count() / 2,
                                                                       longest_.count());
    longest_ = std::min(2 * longest_, kLast);
    return std::chrono::milliseconds(some(random_));
  }

 private:
  std::chrono::milliseconds longest_ = kFirst;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace dtrain::node

#pragma once

#include <chrono>
#include <thread>

#include "tests/support/patience.hpp"

// Whether it comes true; false when it has not for so long that it never will.
template <typename Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

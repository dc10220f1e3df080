#pragma once

#include <stdexcept>
#include <string>

namespace dtrain::train::test {

// In a rank, where a failed doctest assertion would reach nobody: ends it with these words.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not so: " + what);
}

}  // namespace dtrain::train::test

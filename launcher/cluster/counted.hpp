#pragma once

#include <cstddef>
#include <string>

namespace dtrain {

// "1 file", "2 files".
inline std::string counted(std::size_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

}  // namespace dtrain

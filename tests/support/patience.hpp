#pragma once

#include <chrono>

namespace dtrain::testing {

// What has not come by then never will, however busy the machine is.
inline constexpr std::chrono::seconds kPatience{180};

}  // namespace dtrain::testing

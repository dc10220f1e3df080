#pragma once

#include <stop_token>

#include "launcher/core/error.hpp"

namespace dtrain {

// Throws Error where nobody wants any more what is being done.
inline void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(ErrorCode::failed, "stopped");
}

}  // namespace dtrain

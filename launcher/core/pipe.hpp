#pragma once

#include <array>

#include "launcher/core/unique_fd.hpp"

namespace dtrain {

// Close on exec; both throw Error. The end to read and the end to write; and two that do both.
std::array<UniqueFd, 2> make_pipe();
std::array<UniqueFd, 2> make_socket_pair();

}  // namespace dtrain

#pragma once

#include "launcher/core/unique_fd.hpp"
#include "launcher/remote/ssh/deadline.hpp"
#include "launcher/remote/ssh/login.hpp"

namespace dtrain::ssh {

// Nothing listens there, for now at least.
struct Refused {
  std::string how;
};

// A connected TCP socket, non-blocking, without delay. Throws Refused, Error(unreachable) for an
// unknown name or no way there, Error(timeout).
UniqueFd connect_tcp(const Settings& settings, const Deadline& deadline);

// The proxy command as a child, and our end of its stdio.
UniqueFd start_proxy(const Settings& settings, Carrier& carrier);

}  // namespace dtrain::ssh

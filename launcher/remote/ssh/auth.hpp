#pragma once

#include "launcher/remote/ssh/deadline.hpp"
#include "launcher/remote/ssh/handles.hpp"
#include "launcher/remote/ssh/options.hpp"
#include "launcher/remote/ssh/settings.hpp"

namespace dtrain::ssh {

// The server closed the connection where an overloaded sshd does: worth another try.
struct Dropped {
  std::string how;
};

// Calls `step` until it gives something else than `again`, waiting on the session's socket between.
// Throws Error(timeout) at `until` or the deadline, with `what` the server did not do.
int drive(const Session& session, const Deadline& deadline,
          std::chrono::steady_clock::time_point until, int again, const char* what,
          const std::function<int()>& step);

// Logs in: keys first (the given one, the agent's, the files'), then what the server asks a person.
// The session's host key must have been checked. Throws Error(denied) that says what was tried, or
// Dropped.
void authenticate(const Session& session, const Settings& settings, const SshOptions& options,
                  Deadline& deadline);

}  // namespace dtrain::ssh

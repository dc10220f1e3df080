#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/remote/agent_session.hpp"
#include "launcher/remote/transport.hpp"

// From nothing to a running agent, over one channel and without anything but a POSIX sh, head,
// mkdir, mv and uname there.
namespace dtrain {

// The program of `sh -c` that does it; its arguments are a marker, the sum, the size in bytes, and
// 1 to send it whatever is there. One line, without quotes, backslashes and exclamation marks of
// any kind that login shells read differently inside of '…'. It says
//   MARKER SYSTEM RELEASE MACHINE have|need
// and, when it needs it, reads exactly the size; then it becomes `dtrain-agent session`.
std::string bootstrap_script();

struct Bootstrapped {
  std::unique_ptr<Channel> channel;
  bool sent = false;  // the binary
};

// Leaves the channel before the agent's first frame. Errors as of AgentSession::open.
Bootstrapped bootstrap(Transport& transport, const AgentBinary& binary,
                       const SessionOptions& options, bool send_anyway);

// Error(unreachable, failed or exhausted) from what a program that ended said on stderr.
Error ended_early(Channel& channel, const std::string& what);

}  // namespace dtrain

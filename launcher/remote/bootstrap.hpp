#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/remote/agent_session.hpp"
#include "launcher/remote/relay.hpp"
#include "launcher/remote/spread.hpp"
#include "launcher/remote/transport.hpp"

// From nothing to a running agent, over one channel and without anything but a POSIX sh, head,
// mkdir, mv and uname there; with gzip, which nearly each has, it comes compressed, and where many
// hosts want it, from another of them (spread.hpp).
namespace dtrain {

// The program of `sh -c` that does it; its arguments are a marker, the sum, the size in bytes, and
// 1 to send it whatever is there. One line, without quotes, backslashes and exclamation marks of
// any kind that login shells read differently inside of '…'. It says
//   MARKER SYSTEM RELEASE MACHINE have|need gzip|plain ADDRESS
// where ADDRESS is its own, as the login sees it, and, when it needs it, reads a line, "HOW BYTES",
// and exactly so many bytes: the agent, "plain" or as "gzip" writes it, or a "relay" that it runs
// to get the latter. When that ends without it, it says MARKER gone and reads another such line.
// At last it becomes `dtrain-agent session`.
std::string bootstrap_script();

struct Bootstrapped {
  std::unique_ptr<Channel> channel;
  bool sent = false;  // the binary
  // While the session lasts, other hosts may get the binary from there.
  std::unique_ptr<Spread::Seat> seat;
};

// Leaves the channel before the agent's first frame. Errors as of AgentSession::open.
Bootstrapped bootstrap(Transport& transport, const AgentBinary& binary,
                       const AgentSessionOptions& options, bool send_anyway);

// The program of `sh -c` that runs a relay for one file; its arguments are a marker, a folder and a
// name in it. It says MARKER ADDRESS, reads the relay's size on a line, and the relay, and says
// MARKER gone when that ends in vain. When its input ends, it removes the file, if it is still
// there.
std::string relay_script();

// Brings a file to folder/name there, where `seat` has it from. Gives the channel that is to stay
// open while other hosts may get it from there; null where it cannot be done so. Errors as of
// feed_relay().
std::unique_ptr<Channel> bring_by_relay(Transport& transport, Spread::Seat& seat,
                                        const RelayedFile& file, const std::string& folder,
                                        const std::string& name, const AgentSessionOptions& options,
                                        const std::function<void(std::size_t)>& watch);

// Error(unreachable, failed or exhausted) from what a program that ended said on stderr.
Error ended_early(Channel& channel, const std::string& what);

}  // namespace dtrain

#pragma once

#include <string>
#include <vector>

#include "cli/context.hpp"

namespace dtrain::cli {

// A command on nodes, with our stdio as its own.
struct RemoteCommand {
  std::vector<std::string> command;  // empty: the login shell
  bool shell = false;                // command[0] is for /bin/sh -c
  std::vector<std::string> nodes;    // empty: see below
  bool all = false;                  // all nodes; else, with no nodes, the head's
  bool tty = false;
  std::string workdir;
};

// How we came back from it.
struct RemoteEnd {
  int code = 0;        // the largest of all nodes', 255 for a node where it could not be run
  bool ended = false;  // everywhere; false: a signal made us leave, and `code` is 128+n
};

// Runs it until it has ended everywhere, or a signal makes us leave. Throws Error when the head
// refuses or goes away.
RemoteEnd run_remote(const Context& context, const RemoteCommand& command);

// Own trouble of exec and attach, as with ssh.
inline constexpr int kOwnTrouble = 255;

}  // namespace dtrain::cli

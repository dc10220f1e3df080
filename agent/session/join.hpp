#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/paths.hpp"

// A node that nobody logs in to: it comes and goes by itself. What is done is what `up` and `down`
// do over a login.
namespace dtrain::session {

struct JoinOptions {
  fs::path program;                    // this agent, where it is to stay
  fs::path credential;                 // a folder as an identity's, of role `join`
  std::vector<std::string> addresses;  // of the head, numeric; the first is the one that was met
  int port = 0;
  std::string place = {};  // of a head that moves: HeadRoot::place()
  // Keeps the node's agents in the foreground, a contained watch, and gives its exit code. Absent:
  // they go on by themselves.
  std::function<int(const paths::WatchRoot& watch)> contained;
};

// How long a head is tried that does not answer. Nobody waits beside a contained one, whose machine
// was hard to get, maybe: for longer than the head waits for it. Absent: as long as it runs, where
// the head moves and may be away for as long as its next allocation is in the queue.
std::optional<std::chrono::milliseconds> tried_for(const JoinOptions& options);

// Asks the head for a certificate, for a key of this machine's own, and starts the node's agents.
// Harmless when repeated: the same key is answered alike. The head is tried for tried_for(), each
// address in turn. Says what came of it; returns the exit code.
//
// Contained, it removes the credential's folder, as nobody else is there any more to do so, returns
// when the node has ended, and removes what is there of it when the head has said that it is to go.
int join_main(const JoinOptions& options);

// Ends what runs of the node and removes what is there of it, as `down` does over a login: the
// node's agent starts it when its head says so, or a person where the head is gone. Returns the
// exit code.
int leave_main(const paths::NodeRoot& root, const fs::path& program);

}  // namespace dtrain::session

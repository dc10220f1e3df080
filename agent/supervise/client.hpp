#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "agent/supervise/lock.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/attempt.hpp"

// What the node agent needs of supervisors: to start one, to read how it ended, and to
// clean up after it.
namespace dtrain::supervise {

// Starts `agent supervise`, which inherits the lock; the caller lets go of his own. Returns its
// pid, for the caller to reap. It listens at paths::supervisor_socket() and serves one connection:
// a new one ends the one before. Its first line is the hello
// {"type":"hello","version","job","attempt","pid"}, then come the events that are not acknowledged.
pid_t start_supervisor(const std::string& agent, const paths::NodeRoot& node, const JobId& job,
                       int attempt, const AttemptLock& lock);

// How the attempt ended on this node.
struct FinishedRecord {
  // In order and without progress reports, so that numbers may be left out; the last is finished.
  std::vector<wire::AttemptEvent> events;
  wire::NodeFinished finished;
};
// Absent when it has not ended, or its supervisor died before it could say. Throws Error(invalid)
// for a file that is not ours.
std::optional<FinishedRecord> read_exit(const paths::AttemptRoot& root);

// After a supervisor's death: kills what is in the attempt's control group and what carries its
// token, for at most a second each, and removes group, sockets and secrets. Returns what would not
// die. The lock is the proof of its death.
std::vector<pid_t> clean_after(const paths::AttemptRoot& root, const AttemptLock& lock);

}  // namespace dtrain::supervise

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

// The processes of an attempt, seen from its supervisor, which is their subreaper: whatever its
// session, group or environment, a process that a rank started stays below the supervisor.
namespace dtrain::supervise {

// Live processes below that one.
std::vector<pid_t> descendants(pid_t ancestor);

// Those below this one, and what carries the token elsewhere. Ended ones that nobody has reaped are
// not among them.
std::vector<pid_t> attempt_processes(const std::string& token);

// Sends SIGTERM, and SIGCONT so that a stopped one can act on it.
void terminate(const std::vector<pid_t>& pids);
void kill_now(const std::vector<pid_t>& pids);

}  // namespace dtrain::supervise

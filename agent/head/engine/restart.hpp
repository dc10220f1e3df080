#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent/head/store/rows.hpp"
#include "launcher/spec/job_spec.hpp"

// What follows when no process of an attempt is left: pure.
namespace dtrain::head {

// It ended, not well, and not because it was told to.
bool failed_by_itself(const RankRow& rank);

// What an error file has as its time, in seconds since 1970, is one: in nanoseconds it is a number
// still.
inline bool is_time(double error_time) {
  return error_time > 0 && error_time < 9e9;
}

// By the time in its error file, else by that of its exit; both by the clock of its node.
WallTime failed_at(const RankRow& rank);

// "rank 1 on node-0: exit code 3"
std::string describe(const RankRow& rank);

// Of a rank that is the root cause.
Fault fault_of(const RankRow& rank);

struct AttemptEnd {
  AttemptState state = AttemptState::succeeded;  // a final one
  std::string reason;
  bool address_in_use = false;  // rank 0 found its port taken
  bool lasting = false;         // another attempt would fail in the same way
};

struct RestartsSoFar {
  int restarts = 0;      // of max_restarts
  int port_retries = 0;  // outside it
};

struct RestartDecision {
  enum class What : std::uint8_t { succeed, fail, stop, restart };
  What what = What::succeed;
  RestartsSoFar so_far;  // after this decision
  std::string reason;
  std::chrono::seconds wait{0};  // before the next attempt
};

// Attempts of a job that have ended, oldest first.
using PastAttempts = std::vector<const AttemptRow*>;

// Of lost nodes that count nowhere so many in a row end a job that made no checkpoint meanwhile.
inline constexpr int kLostNodesInARow = 10;

// The last of `past` is the attempt that has ended now. `cause` is why it was stopped, if it was.
// A stop or timeout is never restarted; "address in use" is tried once more without being counted;
// what is lasting is not tried again; the rest is as the job's `restart` says.
RestartDecision decide_restart(const AttemptEnd& end, StopCause cause, RestartsSoFar so_far,
                               const JobSpec& spec, const PastAttempts& past);

// How long the next attempt waits after the last one.
std::chrono::seconds backoff(const RestartSpec& restart, const PastAttempts& past);

// The node where the last two failures were, none of them its own end; empty: there is none. The
// next attempt goes elsewhere where it can; once it does better, the node was at fault.
NodeId suspect(const PastAttempts& past);

}  // namespace dtrain::head

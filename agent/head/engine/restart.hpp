#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/head/store/rows.hpp"

// What follows when no process of an attempt is left: pure.
namespace dtrain::head {

// The first failure: by the time in its error file, else by that of its exit. Ranks that ended
// because they were told to are not counted. Absent: no rank failed by itself.
std::optional<RankRow> root_cause(const std::vector<RankRow>& ranks);

// "rank 1 on node-0: exit code 3"
std::string describe(const RankRow& rank);

struct AttemptEnd {
  AttemptState state = AttemptState::succeeded;  // a final one
  std::string reason;
  bool address_in_use = false;  // rank 0 found its port taken
  bool lasting = false;         // another attempt would fail in the same way
  bool left = false;            // a node was told to leave: no failure of the job
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
};

// `cause` is why it was stopped, if it was. A stop or timeout is never restarted; a lost node is a
// failure as any other, one that was told to leave is none; "address in use" is tried once more
// without being counted; what is lasting is not tried again.
RestartDecision decide_restart(const AttemptEnd& end, StopCause cause, RestartsSoFar so_far,
                               int max_restarts);

}  // namespace dtrain::head

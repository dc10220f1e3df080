#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/head/engine/placement.hpp"

// Whose turn it is: pure.
namespace dtrain::head {

struct WaitingJob {
  JobId job;
  int priority = 0;
  std::int64_t order = 0;  // of submission
  Demand demand;
  std::string held;  // not to be started now, and why; nobody waits behind it
  // It has ended that long after its start, whatever happens; absent: not known.
  std::optional<std::chrono::seconds> longest = std::nullopt;
  std::set<NodeId> avoids = {};  // where it can start without them
  // It begins anew, and this is kept for it, used already in the eyes of all others.
  struct Kept {
    std::vector<PlacedShare> gang;  // of its last attempt, as far as those nodes are there
    std::vector<PlacedShare> spares;
    int width = 0;      // nodes of its last attempt
    bool away = false;  // more of them are not connected, and may be again in a moment
  };
  Kept kept = {};
  bool wished = false;  // it is no job but a spare: nobody is to go for it
};

// Where it starts on what is kept for it alone, as many nodes as it had: of its own first, a spare
// in the place of each that is missing or that it avoids.
std::optional<std::vector<PlacedShare>> place_on_kept(std::vector<NodeCapacity> nodes,
                                                      const WaitingJob& job);

// What the nodes' used resources are used by.
struct RunningJob {
  std::vector<PlacedShare> shares;
  std::optional<std::chrono::seconds> left;  // it has ended by then; absent: not known
};

struct QueueDecision {
  struct Start {
    JobId job;
    std::vector<PlacedShare> shares;
    std::string reason;  // why it overtakes another; empty: it was its turn
  };
  std::vector<Start> starts;
  std::map<JobId, std::string> reasons;  // of those that do not start
  // What was kept for these does not do: they compete with anybody else, and it is kept no more.
  std::vector<JobId> gave_up;
};

// Behind the first one that waits so many are looked at; the rest wait for their turn. It bounds
// what a decision takes.
inline constexpr std::size_t kBackfillDepth = 100;

// By priority, larger first, then by age.
std::vector<const WaitingJob*> in_turn(const std::vector<WaitingJob>& queue);

// In turn, after those that start on what is kept for them. The first one that waits for what
// others use now is never delayed by what comes behind it (backfill.hpp), so that none starves. One
// that could not run on the usable nodes even if they were empty blocks nobody. `missing` is the
// number of nodes that are expected but never came.
QueueDecision decide_queue(std::vector<NodeCapacity> nodes, const std::vector<WaitingJob>& queue,
                           int missing, std::vector<RunningJob> running = {},
                           std::size_t depth = kBackfillDepth);

}  // namespace dtrain::head

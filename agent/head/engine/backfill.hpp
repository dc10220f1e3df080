#pragma once

#include "agent/head/engine/queue.hpp"

// Small jobs before a large one that waits, without delaying it (EASY backfill): pure.
//
// The job that waits has a reservation: from the times by which running jobs have ended at the
// latest, the moment by which it can start. A job behind it may start now if
//   - it has ended by that moment, or
//   - the one that waits still fits at that moment beside it, or
//   - it leaves every node as useful to the one that waits as it was: nodes that it can use now
//   stay
//     so, nodes that it could not use even when empty are free to be taken. This needs no times,
//     and is all there is while no running job's end is known.
// So the one that waits starts by its moment at the latest, and where no time is known, exactly
// when it would have.
namespace dtrain::head {

// What a job's shares use, taken on or given back. `nodes` by name.
void take(std::vector<NodeCapacity>& nodes, const std::vector<PlacedShare>& shares);
void release(std::vector<NodeCapacity>& nodes, const std::vector<PlacedShare>& shares);

class Backfill {
 public:
  // `nodes` by name, as they are now with `running` on them; `waits` does not fit on them, for
  // `reason`.
  Backfill(std::vector<NodeCapacity> nodes, std::vector<RunningJob> running,
           const WaitingJob& waits, const std::string& reason);

  // The moment of the reservation, from now; absent: it depends on ends that are not known.
  std::optional<std::chrono::seconds> reserved() const { return moment_; }
  // Starts the job if it may; later ones are judged with it in its place.
  std::optional<QueueDecision::Start> start(const WaitingJob& job);

 private:
  bool leaves_all(const std::vector<PlacedShare>& shares);
  bool fits_then_beside(const std::vector<PlacedShare>& shares);

  std::vector<NodeCapacity> now_;
  std::vector<NodeCapacity> then_;  // at the moment
  std::string who_;                 // "big-abcdef, which needs 4 CPUs on each of 2 nodes"
  Demand demand_;
  std::optional<std::chrono::seconds> moment_;
  // Nodes by their place in the lists.
  std::vector<bool> useless_;     // to the one that waits, whatever happens
  std::vector<bool> open_;        // the same, and those that it can use now
  std::vector<bool> unreserved_;  // not needed at the moment
};

}  // namespace dtrain::head

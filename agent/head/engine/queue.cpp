#include "agent/head/engine/queue.hpp"

#include <algorithm>
#include <tuple>

#include "agent/head/engine/backfill.hpp"

namespace dtrain::head {
namespace {

// Answers of place_in_order() for the same nodes: jobs that ask for the same are looked at once.
class Answers {
 public:
  explicit Answers(std::vector<NodeCapacity> nodes) : nodes_(std::move(nodes)) {}

  const Placement& of(const Demand& demand) {
    const auto known = known_.find(demand);
    if (known != known_.end()) return known->second;
    return known_.emplace(demand, place_in_order(nodes_, demand)).first->second;
  }

  const std::vector<NodeCapacity>& nodes() const { return nodes_; }
  void free(const std::vector<PlacedShare>& shares) {
    head::release(nodes_, shares);
    for (const PlacedShare& share : shares) {
      for (NodeCapacity& node : nodes_) {
        if (node.node == share.node) node.kept.clear();
      }
    }
    known_.clear();
  }
  void take(const std::vector<PlacedShare>& shares) {
    head::take(nodes_, shares);
    known_.clear();
  }

 private:
  std::vector<NodeCapacity> nodes_;
  std::map<Demand, Placement> known_;
};

// Where it can start without the nodes that it avoids.
std::optional<std::vector<PlacedShare>> without(const std::vector<NodeCapacity>& nodes,
                                                const WaitingJob& job) {
  if (job.avoids.empty()) return std::nullopt;
  std::vector<bool> among(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) among[i] = !job.avoids.contains(nodes[i].node);
  return place_in_order(nodes, job.demand, &among).shares;
}

// What of it is not used then stays kept, if it is a spare.
void start_on_kept(Answers& now, const WaitingJob& job, const std::vector<PlacedShare>& shares) {
  now.free(job.kept.gang);
  now.free(job.kept.spares);
  now.take(shares);
  for (const PlacedShare& spare : job.kept.spares) {
    const bool used = std::any_of(shares.begin(), shares.end(), [&](const PlacedShare& share) {
      return share.node == spare.node;
    });
    if (!used) now.take({spare});
  }
}

std::string nodes_text(int count) {
  return std::to_string(count) + (count == 1 ? " more node" : " more nodes");
}

}  // namespace

std::optional<std::vector<PlacedShare>> place_on_kept(std::vector<NodeCapacity> nodes,
                                                      const WaitingJob& job) {
  const WaitingJob::Kept& kept = job.kept;
  Demand same = job.demand;
  if (kept.width < same.nnodes.min || kept.width > same.nnodes.max) return std::nullopt;
  same.nnodes = {kept.width, kept.width};
  release(nodes, kept.gang);
  release(nodes, kept.spares);
  std::set<NodeId> gang;
  std::set<NodeId> all;
  for (const PlacedShare& share : kept.gang) gang.insert(share.node);
  all = gang;
  for (const PlacedShare& share : kept.spares) all.insert(share.node);
  const auto on = [&](const std::set<NodeId>& where, bool avoiding) {
    std::vector<bool> among(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      among[i] = where.contains(nodes[i].node) && !(avoiding && job.avoids.contains(nodes[i].node));
    }
    return place_in_order(nodes, same, &among).shares;
  };
  // So many of its own as there are, and of the spares only what is missing.
  const auto with_spares = [&](bool avoiding) -> std::optional<std::vector<PlacedShare>> {
    std::set<NodeId> where = gang;
    for (auto spare = kept.spares.begin();; ++spare) {
      if (auto shares = on(where, avoiding)) return shares;
      if (spare == kept.spares.end()) return std::nullopt;
      where.insert(spare->node);
    }
  };
  if (auto shares = with_spares(true)) return shares;
  return job.avoids.empty() ? std::nullopt : with_spares(false);
}

std::vector<const WaitingJob*> in_turn(const std::vector<WaitingJob>& queue) {
  std::vector<const WaitingJob*> turns;
  turns.reserve(queue.size());
  for (const WaitingJob& job : queue) turns.push_back(&job);
  std::stable_sort(turns.begin(), turns.end(), [](const WaitingJob* a, const WaitingJob* b) {
    return std::tuple(-a->priority, a->order) < std::tuple(-b->priority, b->order);
  });
  return turns;
}

QueueDecision decide_queue(std::vector<NodeCapacity> nodes, const std::vector<WaitingJob>& queue,
                           int missing, std::vector<RunningJob> running, std::size_t depth) {
  const std::vector<const WaitingJob*> turns = in_turn(queue);
  order_by_name(nodes);
  std::vector<NodeCapacity> usable;
  for (const NodeCapacity& node : nodes) {
    if (node.usable) usable.push_back(node);
  }
  Answers when_empty(emptied(nodes));
  Answers when_usable_empty(emptied(std::move(usable)));
  Answers now(std::move(nodes));

  QueueDecision decision;
  const WaitingJob* first = nullptr;  // the first one that waits for what others use
  std::optional<Backfill> backfill;
  std::size_t looked_at = 0;
  const std::string too_far =
      "waits for its turn, behind more than " + std::to_string(depth) + " others";
  for (const WaitingJob* each : turns) {
    const WaitingJob& job = *each;
    std::string& reason = decision.reasons[job.job];
    if (!job.held.empty()) {
      reason = job.held;
      continue;
    }
    if (job.kept.width > 0) {
      if (auto shares = place_on_kept(now.nodes(), job)) {
        start_on_kept(now, job, *shares);
        running.push_back({*shares, job.longest});
        decision.starts.push_back({job.job, std::move(*shares), {}});
        decision.reasons.erase(job.job);
        continue;
      }
      // With anybody else it competes for the rest, and for what was kept.
      if (!job.kept.away) {
        now.free(job.kept.gang);
        now.free(job.kept.spares);
        decision.gave_up.push_back(job.job);
      }
    }
    if (first != nullptr && looked_at == depth) {
      // The same for all of them and at all times, so that they are not told anew again and again.
      reason = too_far;
      continue;
    }
    const Placement& empty = when_empty.of(job.demand);
    if (!empty.shares) {
      reason = missing > 0 ? "waits for " + nodes_text(missing) + " to join: " + empty.reason
                           : "cannot fit even on the empty cluster: " + empty.reason;
      continue;
    }
    std::optional<QueueDecision::Start> start;
    if (!when_usable_empty.of(job.demand).shares) {
      reason = now.of(job.demand).reason;
    } else if (first != nullptr) {
      ++looked_at;
      start = backfill->start(job);
      reason = "waits behind " + first->job.str() + " (priority " +
               std::to_string(first->priority) + ")";
    } else if (const Placement& placement = now.of(job.demand); placement.shares) {
      const auto others = without(now.nodes(), job);
      start = QueueDecision::Start{job.job, others ? *others : *placement.shares, {}};
      now.take(start->shares);
      running.push_back({start->shares, job.longest});
    } else {
      reason = placement.reason;
      first = &job;
      backfill.emplace(now.nodes(), running, job, reason);
    }
    if (!start) continue;
    decision.starts.push_back(std::move(*start));
    decision.reasons.erase(job.job);
  }
  return decision;
}

}  // namespace dtrain::head

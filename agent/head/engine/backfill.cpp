#include "agent/head/engine/backfill.hpp"

#include <algorithm>

namespace dtrain::head {
namespace {

// Between a decision and the start that it means, and for the sweep behind an end.
constexpr std::chrono::seconds kEndSlack{5};

// `nodes` by name.
NodeCapacity* find_node(std::vector<NodeCapacity>& nodes, const NodeId& id) {
  const auto found = std::lower_bound(nodes.begin(), nodes.end(), id,
                                      [](const NodeCapacity& node, const NodeId& wanted) {
                                        return natural_less(node.node.str(), wanted.str());
                                      });
  return found != nodes.end() && found->node == id ? &*found : nullptr;
}

}  // namespace

void take(std::vector<NodeCapacity>& nodes, const std::vector<PlacedShare>& shares) {
  for (const PlacedShare& share : shares) {
    NodeCapacity* node = find_node(nodes, share.node);
    if (node != nullptr) use(*node, share);
  }
}

void release(std::vector<NodeCapacity>& nodes, const std::vector<PlacedShare>& shares) {
  for (const PlacedShare& share : shares) {
    NodeCapacity* node = find_node(nodes, share.node);
    if (node != nullptr) release(*node, share);
  }
}

Backfill::Backfill(std::vector<NodeCapacity> nodes, std::vector<RunningJob> running,
                   const WaitingJob& waits, const std::string& reason)
    : now_(std::move(nodes)),
      who_(waits.job.str() + ", which " + reason.substr(0, reason.find(';'))),
      demand_(waits.demand) {
  demand_.nnodes.max = demand_.nnodes.min;
  Demand one = demand_;
  one.nnodes = {1, 1};
  for (const NodeCapacity& node : now_) {
    useless_.push_back(!place_in_order(emptied({node}), one).shares.has_value());
    open_.push_back(useless_.back() || place_in_order({node}, one).shares.has_value());
  }
  unreserved_.assign(now_.size(), true);
  std::erase_if(running, [](const RunningJob& job) { return !job.left.has_value(); });
  std::sort(running.begin(), running.end(),
            [](const RunningJob& a, const RunningJob& b) { return *a.left < *b.left; });
  const auto after = [&](std::size_t ends) {
    std::vector<NodeCapacity> then = now_;
    for (std::size_t i = 0; i < ends; ++i) release(then, running[i].shares);
    return then;
  };
  // The least number of ends that makes room; the more have ended, the more is free.
  std::size_t too_few = 0;
  std::size_t enough = running.size();
  if (enough == 0 || !place_in_order(after(enough), demand_).shares) return;
  while (enough - too_few > 1) {
    const std::size_t middle = too_few + (enough - too_few) / 2;
    (place_in_order(after(middle), demand_).shares ? enough : too_few) = middle;
  }
  moment_ = running[enough - 1].left;
  // Those that end at the same moment have ended too.
  while (enough < running.size() && *running[enough].left == *moment_) ++enough;
  then_ = after(enough);
  const Placement reservation = place_in_order(then_, demand_);
  for (const PlacedShare& share : *reservation.shares) {
    const NodeCapacity* node = find_node(then_, share.node);
    unreserved_[static_cast<std::size_t>(node - then_.data())] = false;
  }
}

// No node is of less use to the one that waits than before.
bool Backfill::leaves_all(const std::vector<PlacedShare>& shares) {
  Demand one = demand_;
  one.nnodes = {1, 1};
  for (const PlacedShare& share : shares) {
    const NodeCapacity* node = find_node(now_, share.node);
    if (useless_[static_cast<std::size_t>(node - now_.data())]) continue;
    std::vector<NodeCapacity> with = {*node};
    take(with, {share});
    if (!place_in_order(with, one).shares) return false;
  }
  return true;
}

bool Backfill::fits_then_beside(const std::vector<PlacedShare>& shares) {
  if (!moment_) return false;
  take(then_, shares);
  const bool fits = place_in_order(then_, demand_).shares.has_value();
  release(then_, shares);
  return fits;
}

std::optional<QueueDecision::Start> Backfill::start(const WaitingJob& job) {
  Placement anywhere = place_in_order(now_, job.demand);
  if (!anywhere.shares) return std::nullopt;
  if (moment_ && job.longest && *job.longest + kEndSlack <= *moment_) {
    take(now_, *anywhere.shares);
    return QueueDecision::Start{job.job, std::move(*anywhere.shares),
                                "starts before " + who_ + ": it ends by then"};
  }
  using Among = const std::vector<bool>*;
  for (const Among among : {Among(&useless_), Among(&open_), Among(&unreserved_), Among(nullptr)}) {
    Placement placement = place_in_order(now_, job.demand, among);
    if (!placement.shares) continue;
    if (!leaves_all(*placement.shares) && !fits_then_beside(*placement.shares)) continue;
    take(now_, *placement.shares);
    if (moment_) take(then_, *placement.shares);
    return QueueDecision::Start{job.job, std::move(*placement.shares),
                                "starts before " + who_ + ": it takes nothing of that"};
  }
  return std::nullopt;
}

}  // namespace dtrain::head

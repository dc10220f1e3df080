#include "agent/head/engine/spares.hpp"

#include <algorithm>
#include <tuple>

namespace dtrain::head {

SpareDecision decide_spares(std::vector<NodeCapacity> nodes, const std::set<NodeId>& away,
                            std::vector<SpareWant> wants) {
  order_by_name(nodes);
  std::stable_sort(wants.begin(), wants.end(), [](const SpareWant& a, const SpareWant& b) {
    return std::tuple(-a.priority, a.order) < std::tuple(-b.priority, b.order);
  });
  std::map<NodeId, std::size_t> places;
  for (std::size_t i = 0; i < nodes.size(); ++i) places[nodes[i].node] = i;
  SpareDecision decision;
  const auto take = [&](const SpareWant& want, PlacedShare share) {
    use(nodes[places.at(share.node)], share);
    decision.spares[want.job].push_back(std::move(share));
  };
  const auto one_of = [](const SpareWant& want) {
    Demand one = want.demand;
    one.nnodes = {1, 1};
    return one;
  };
  for (const SpareWant& want : wants) {
    for (const NodeId& id : want.has) {
      const auto place = places.find(id);
      if (place == places.end() || want.not_on.contains(id)) continue;
      if (decision.spares[want.job].size() == want.count) break;
      NodeCapacity node = nodes[place->second];
      node.usable = node.usable || away.contains(id);
      if (auto there = place_in_order({node}, one_of(want)); there.shares) {
        take(want, std::move(there.shares->front()));
      }
    }
  }
  for (const SpareWant& want : wants) {
    if (!want.takes_new) continue;
    std::vector<bool> among(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) among[i] = !want.not_on.contains(nodes[i].node);
    for (const PlacedShare& share : decision.spares[want.job]) {
      among[places.at(share.node)] = false;
    }
    while (decision.spares[want.job].size() < want.count) {
      auto there = place_in_order(nodes, one_of(want), &among);
      if (!there.shares) {
        const std::size_t missing = want.count - decision.spares[want.job].size();
        decision.reasons[want.job] = "no node is free for " + std::to_string(missing) +
                                     (missing == 1 ? " spare" : " spares");
        break;
      }
      among[places.at(there.shares->front().node)] = false;
      take(want, std::move(there.shares->front()));
    }
  }
  return decision;
}

}  // namespace dtrain::head

#include "agent/head/engine/growth.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

NodeCapacity one_of(const MachineType& type, const NodeId& node) {
  NodeCapacity one = type.each;
  one.node = node;
  return one;
}

std::string machines_text(int count, const std::string& type) {
  return std::to_string(count) + (count == 1 ? " machine" : " machines") + " of type " + type;
}

class Grower {
 public:
  Grower(const std::vector<NodeCapacity>& nodes, const std::set<NodeId>& soon,
         const MachinesToCome& machines)
      : left_(machines.most) {
    for (NodeCapacity node : nodes) {
      const bool is_soon = soon.contains(node.node);
      node.usable = node.usable || is_soon;
      add(std::move(node), {is_soon ? Kind::soon : Kind::here});
    }
    for (const MachineType& type : machines.types) {
      offers_.push_back({&type, type.most - type.there});
      left_ -= type.there;
    }
    std::stable_sort(offers_.begin(), offers_.end(), [](const Offer& a, const Offer& b) {
      return a.type->priority > b.type->priority;
    });
    for (const ComingMachine& each : machines.coming) {
      const auto type = std::find_if(machines.types.begin(), machines.types.end(),
                                     [&](const auto& one) { return one.name == each.type; });
      // One that has just come may still be said to come.
      if (type == machines.types.end() || index_.contains(each.node)) continue;
      add(one_of(*type, each.node), {Kind::coming, !type->known, &each});
    }
  }

  // False: its nodes are neither there nor to be had.
  bool serve(const WaitingJob& job) {
    Demand demand = job.demand;
    demand.nnodes.max = demand.nnodes.min;
    if (const Placement placement = place_in_order(nodes_, demand); placement.shares) {
      give(job, *placement.shares);
      return true;
    }
    if (!job.held.empty()) return true;
    for (Offer& offer : offers_) {
      if (demand.nnodes.min > std::min(offer.left, left_)) continue;
      if (ask(job, offer, demand)) return true;
    }
    return false;
  }

  Growth take() && { return std::move(growth_); }

 private:
  enum class Kind : std::uint8_t { here, soon, coming, asked };
  struct Place {
    Kind kind;
    bool for_one = false;  // nobody knows what it has
    const ComingMachine* machine = nullptr;
  };
  struct Offer {
    const MachineType* type;
    int left;  // more there may be
  };

  void add(NodeCapacity node, Place place) {
    index_.emplace(node.node, nodes_.size());
    nodes_.push_back(std::move(node));
    places_.push_back(place);
  }

  bool ask(const WaitingJob& job, Offer& offer, const Demand& demand) {
    const MachineType& type = *offer.type;
    std::vector<NodeCapacity> gang;
    for (int i = 0; i < demand.nnodes.min; ++i) {
      gang.push_back(one_of(type, NodeId(" " + std::to_string(nodes_.size() + gang.size()))));
    }
    const Placement placement = place_in_order(gang, demand);
    if (!placement.shares) return false;
    const int count = demand.nnodes.min;
    for (NodeCapacity& one : gang) add(std::move(one), {Kind::asked, !type.known});
    offer.left -= count;
    left_ -= count;
    growth_.gangs.push_back({job.job, type.name, count});
    give(job, *placement.shares);
    growth_.reasons[job.job] = (type.trouble.empty() ? "asks for " : "would ask for ") +
                               machines_text(count, type.name) +
                               (type.trouble.empty() ? "" : ": " + type.trouble);
    return true;
  }

  void give(const WaitingJob& job, const std::vector<PlacedShare>& shares) {
    std::vector<NodeId> here;
    std::vector<std::string> coming;
    const ComingMachine* last = nullptr;  // to come
    bool waits = false;
    bool any_moment = true;
    for (const PlacedShare& share : shares) {
      const std::size_t at = index_.at(share.node);
      const Place& place = places_[at];
      use(nodes_[at], share);
      if (place.for_one) nodes_[at].usable = false;
      waits = waits || place.kind != Kind::here;
      if (place.kind == Kind::asked) {
        any_moment = false;
        continue;
      }
      growth_.needed.insert(share.node);
      if (place.kind != Kind::coming) {
        here.push_back(share.node);
        continue;
      }
      any_moment = any_moment && place.machine->runs;
      coming.push_back(share.node.str());
      if (last == nullptr || (last->runs && !place.machine->runs)) last = place.machine;
    }
    if (!waits || !job.held.empty()) return;
    if (any_moment) {
      for (const NodeId& node : here) growth_.kept.emplace(node, job.job);
    }
    if (coming.empty()) return;
    const std::size_t more = coming.size() - std::min(kNamedNodes, coming.size());
    coming.resize(coming.size() - more);
    growth_.reasons[job.job] = "waits for " + join(coming, ", ") +
                               (more > 0 ? " and " + std::to_string(more) + " more" : "") +
                               (last->reason.empty() ? "" : ": " + last->reason);
  }

  // Here, soon, coming, and to be asked for; what is beside them in the other list is of the same.
  std::vector<NodeCapacity> nodes_;
  std::vector<Place> places_;
  std::map<NodeId, std::size_t> index_;
  std::vector<Offer> offers_;
  int left_;  // more there may be, of all types
  Growth growth_;
};

}  // namespace

NodeCapacity any_machine() {
  NodeCapacity any;
  any.cpus = 65536;
  any.gpus = 1024;
  any.memory = std::numeric_limits<std::uint64_t>::max();
  return any;
}

Growth decide_growth(std::vector<NodeCapacity> nodes, const std::set<NodeId>& soon,
                     const std::vector<WaitingJob>& queue, const MachinesToCome& machines) {
  order_by_name(nodes);
  MachinesToCome in_order = machines;
  std::sort(in_order.coming.begin(), in_order.coming.end(),
            [](const auto& a, const auto& b) { return natural_less(a.node.str(), b.node.str()); });
  Grower grower(nodes, soon, in_order);
  std::set<Demand> in_vain;  // what is free only shrinks
  std::size_t looked_at = 0;
  for (const WaitingJob* job : in_turn(queue)) {
    if (looked_at == kGrowthDepth) break;
    if (in_vain.contains(job->demand)) continue;
    ++looked_at;
    if (!grower.serve(*job)) in_vain.insert(job->demand);
  }
  return std::move(grower).take();
}

std::string never_fits(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                       const MachinesToCome& machines) {
  WaitingJob job;
  job.demand = demand;
  MachinesToCome all = machines;  // as if none were there
  for (MachineType& type : all.types) type.there = 0;
  all.coming.clear();
  if (Grower(emptied(nodes), {}, all).serve(job)) return {};
  Demand part = demand;
  part.nnodes = {1, 1};
  std::vector<NodeCapacity> each;
  for (const MachineType& type : machines.types) {
    each.push_back(one_of(type, NodeId("each " + type.name)));
  }
  const Placement one = place_in_order(each, part);
  if (!one.shares) return one.reason;
  return place(emptied(nodes), demand).reason + "; there may be " + std::to_string(machines.most) +
         " machines at most";
}

}  // namespace dtrain::head

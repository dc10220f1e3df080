#include "agent/head/engine/growth.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

NodeCapacity one_of(const MachineType& type, const NodeId& node, const std::string& allocation) {
  NodeCapacity one = type.each;
  one.node = node;
  one.allocation = allocation;
  return one;
}

std::string machines_text(int count, const std::string& type) {
  return std::to_string(count) + (count == 1 ? " machine" : " machines") + " of type " + type;
}

// "waits for gpu-1, gpu-2: waits in partition gpu"
std::string waits_for(const std::vector<const ComingMachine*>& coming) {
  std::vector<std::string> names;
  const ComingMachine* last = coming.front();  // to come
  for (const ComingMachine* each : coming) {
    if (names.size() < kNamedNodes) names.push_back(each->node.str());
    if (last->runs && !each->runs) last = each;
  }
  const std::size_t more = coming.size() - names.size();
  return "waits for " + join(names, ", ") +
         (more > 0 ? " and " + std::to_string(more) + " more" : "") +
         (last->reason.empty() ? "" : ": " + last->reason);
}

// "2 of 4 p3.2xlarge are coming (us-west-2b, since 08:21:20Z)"
std::string are_coming(const std::vector<const ComingMachine*>& coming, std::size_t all) {
  std::set<std::string> kinds;
  std::set<std::string> places;
  std::string since;  // of the first, in the order of their names
  for (const ComingMachine* each : coming) {
    kinds.insert(each->kind.empty() ? each->type : each->kind);
    if (!each->zone.empty()) places.insert(each->zone);
    if (since.empty()) since = each->since;
  }
  std::vector<std::string> what(places.begin(), places.end());
  if (!since.empty()) what.push_back("since " + since);
  const bool all_run = std::all_of(coming.begin(), coming.end(),
                                   [](const ComingMachine* each) { return each->runs; });
  if (all_run) what.emplace_back(coming.size() == 1 ? "it joins" : "they join");
  return std::to_string(coming.size()) + " of " + std::to_string(all) + " " +
         join(std::vector<std::string>(kinds.begin(), kinds.end()), ", ") +
         (coming.size() == 1 ? " is coming" : " are coming") +
         (what.empty() ? "" : " (" + join(what, ", ") + ")");
}

class Grower {
 public:
  Grower(const std::vector<NodeCapacity>& nodes, const std::set<NodeId>& soon,
         const MachinesToCome& machines)
      : in_allocations_(machines.in_allocations),
        most_(machines.most),
        left_(machines.most),
        limit_(machines.cost),
        cost_(limit_.now) {
    for (NodeCapacity node : nodes) {
      const bool is_soon = soon.contains(node.node);
      node.usable = node.usable || is_soon;
      add(std::move(node), {is_soon ? Kind::soon : Kind::here});
    }
    std::map<std::string, int> coming;
    for (const ComingMachine& each : machines.coming) coming[each.type] += each.by_up ? 0 : 1;
    for (const MachineType& type : machines.types) {
      offers_.push_back({&type, type.most - type.there, coming[type.name]});
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
      add(one_of(*type, each.node, each.allocation), {Kind::coming, !type->known, &each});
    }
  }

  // False: such jobs are not to be looked at any more; why() is of all of them.
  bool serve(const WaitingJob& job) {
    dear_.clear();
    Demand demand = job.demand;
    demand.nnodes.max = demand.nnodes.min;
    std::vector<bool> here(nodes_.size());
    for (std::size_t i = 0; i < here.size(); ++i) here[i] = places_[i].kind == Kind::here;
    if (const Placement now = place_in_order(nodes_, demand, &here); now.shares) {
      give(job, *now.shares);
      return true;
    }
    if (const Placement then = place_in_order(nodes_, demand); then.shares) {
      give(job, *then.shares);
      return true;
    }
    for (const bool is_whole : {true, false}) {
      if (is_whole && !in_allocations_) continue;
      for (const bool is_refused : {false, true}) {
        for (Offer& offer : offers_) {
          const int count = is_whole ? demand.nnodes.min : complement(offer, demand);
          const bool fits = count > 0 && count <= left(offer);
          if (!fits || refuses(offer, count) != is_refused) continue;
          if (is_too_dear(offer, demand, is_whole, count)) continue;
          if (ask(job, offer, demand, is_whole, count)) return true;
        }
      }
    }
    if (!dear_.empty()) growth_.reasons[job.job] = dear_;
    return !job.wished && keep_what_is_free(job, demand);
  }

  // The last one got no machines because of what they cost; empty: that did not hinder it.
  const std::string& why() const { return dear_; }
  void say(const JobId& job, const std::string& why) { growth_.reasons[job] = why; }

  // There may be machines for it, but for what they cost, whatever else goes; empty: that is not
  // it.
  std::string always_too_dear(const Demand& demand) const {
    std::string cheapest;
    double least = 0;
    for (const Offer& offer : offers_) {
      const std::string why = alone(offer, demand).value_or("");
      const double price = price_of(*offer.type, demand.nnodes.min);
      if (why.empty() || (!cheapest.empty() && price >= least)) continue;
      cheapest = why;
      least = price;
    }
    return cheapest;
  }

  Growth take() && { return std::move(growth_); }

 private:
  enum class Kind : std::uint8_t { here, soon, coming, asked };
  // Of machines that are asked for, and of gangs that want some.
  enum class Outlook : std::uint8_t { good, doubtful, refused };
  struct Place {
    Kind kind;
    bool for_one = false;  // nobody knows what it has
    const ComingMachine* machine = nullptr;
    Outlook outlook = Outlook::good;
  };
  struct Offer {
    const MachineType* type;
    int left;  // more there may be
    int coming;
    bool is_full = false;  // as many are coming as may, and somebody waits for more
  };

  void add(NodeCapacity node, Place place) {
    index_.emplace(node.node, nodes_.size());
    nodes_.push_back(std::move(node));
    places_.push_back(place);
  }

  int left(const Offer& offer) const { return std::max(0, std::min(offer.left, left_)); }
  static bool refuses(const Offer& offer, int count) {
    return !offer.type->trouble.empty() && count >= offer.type->refused;
  }

  static bool may_come(const Offer& offer, int count) {
    const auto& at_once = offer.type->at_once;
    return !at_once || offer.coming == 0 || (!offer.is_full && offer.coming + count <= *at_once);
  }

  static double price_of(const MachineType& type, int count) {
    return type.price ? count * *type.price : std::numeric_limits<double>::infinity();
  }

  // So many would do, and cost too much: says so of the cheapest that do.
  bool is_too_dear(const Offer& offer, const Demand& demand, bool is_whole, int count) {
    const MachineType& type = *offer.type;
    const std::string why = too_dear(limit_, count, type.price, cost_);
    if (why.empty()) return false;
    const double price = price_of(type, count);
    if (!dear_.empty() && price >= dear_price_) return true;
    if (!is_whole || place_in_order(fresh(type, count), demand).shares) {
      dear_ = "would ask for " + machines_text(count, type.name) + ": " + why;
      dear_price_ = price;
    }
    return true;
  }

  std::vector<NodeCapacity> fresh(const MachineType& type, int count) const {
    std::vector<NodeCapacity> machines;
    // No allocation's name begins so, nor a node's.
    const std::string together = " " + std::to_string(nodes_.size());
    for (int i = 0; i < count; ++i) {
      const std::size_t number = nodes_.size() + machines.size();
      machines.push_back(one_of(type, NodeId(" " + std::to_string(number)), together));
    }
    return machines;
  }

  // So many of the type do, beside all that is there and coming; 0: none do.
  int complement(const Offer& offer, const Demand& demand) const {
    int enough = std::min(left(offer), demand.nnodes.min);
    if (enough == 0) return 0;
    std::vector<NodeCapacity> all = nodes_;
    const auto does = [&](int count) {
      all.resize(nodes_.size());
      for (NodeCapacity& one : fresh(*offer.type, count)) all.push_back(std::move(one));
      return place_in_order(all, demand).shares.has_value();
    };
    if (!does(enough)) return 0;
    for (int too_few = 0; enough - too_few > 1;) {
      const int middle = too_few + (enough - too_few) / 2;
      (does(middle) ? enough : too_few) = middle;
    }
    return enough;
  }

  bool ask(const WaitingJob& job, Offer& offer, const Demand& demand, bool is_whole, int count) {
    const MachineType& type = *offer.type;
    std::vector<NodeCapacity> gang = fresh(type, count);
    if (is_whole && !place_in_order(gang, demand).shares) return false;
    const bool is_refused = refuses(offer, count);
    if (!is_refused && !may_come(offer, count)) {
      offer.is_full = true;
      growth_.reasons[job.job] =
          "waits until others have come: " + machines_text(offer.coming, type.name) +
          " are coming, and " + std::to_string(*type.at_once) + " may be at once";
      return true;
    }
    const std::size_t before = nodes_.size();
    const Outlook outlook = is_refused    ? Outlook::refused
                            : type.failed ? Outlook::doubtful
                                          : Outlook::good;
    worst_ = std::max(worst_, outlook);
    for (NodeCapacity& one : gang)
      add(std::move(one), {Kind::asked, !type.known, nullptr, outlook});
    std::vector<bool> among(before, !is_whole);
    among.resize(nodes_.size(), true);
    offer.left -= count;
    left_ -= count;
    if (!is_refused) offer.coming += count;
    cost_ += count * type.price.value_or(0);
    growth_.gangs.push_back({job.job, type.name, count});
    give(job, *place_in_order(nodes_, demand, &among).shares);
    const std::string coming = std::exchange(growth_.reasons[job.job], "");
    growth_.reasons[job.job] =
        (is_refused ? "would ask for " : "asks for ") + machines_text(count, type.name) +
        (is_refused ? ": " + type.trouble : "") + (coming.empty() ? "" : "; " + coming);
    return true;
  }

  // Of this type alone, if all others went that may: empty: it could run, else what it costs.
  // Absent: it could not anyway.
  std::optional<std::string> alone(const Offer& offer, const Demand& demand) const {
    const MachineType& type = *offer.type;
    const int count = demand.nnodes.min;
    int standing = 0;
    for (const Offer& each : offers_) standing += each.type->least;
    const bool may_be = count <= std::min(type.most, most_ - standing + type.least) &&
                        place_in_order(fresh(type, count), demand).shares;
    if (!may_be) return std::nullopt;
    const int more = std::max(0, count - type.least);
    const std::string why = too_dear(limit_, more, type.price, limit_.least);
    if (why.empty()) return why;
    return "would ask for " + machines_text(more, type.name) + ": " + why;
  }

  // Whether it could run if others went. Nobody behind it is to take what it waits for then.
  bool keep_what_is_free(const WaitingJob& job, const Demand& demand) {
    const bool could = std::any_of(offers_.begin(), offers_.end(), [&](const Offer& offer) {
      return alone(offer, demand) == std::string();
    });
    if (!could) return false;
    if (!growth_.short_of_room) {
      room_ = dear_.empty() ? "there may be " + std::to_string(most_) + " machines"
                            : "max_cost_per_hour is " + human_dollars(limit_.most.value_or(0));
    }
    if (dear_.empty()) growth_.reasons[job.job] = "waits until others have ended: " + room_;
    if (std::exchange(growth_.short_of_room, true)) return true;  // the first in turn does
    left_ = 0;
    Demand part = demand;
    part.nnodes = {1, 1};
    int kept = 0;
    for (std::size_t i = 0; i < nodes_.size() && kept < demand.nnodes.min; ++i) {
      if (places_[i].kind != Kind::here || !nodes_[i].usable) continue;
      const Placement placement = place_in_order({nodes_[i]}, part);
      if (!placement.shares) continue;
      ++kept;
      const PlacedShare& share = placement.shares->front();
      use(nodes_[i], share);
      // What is of several allocations does it no good: those go, and one comes in their place.
      if (!demand.one_allocation) hold(share.node, worst_);
      growth_.kept[share.node].push_back(share);
    }
    return true;
  }

  // One that is here, for a gang that gets the rest, or does not.
  void hold(const NodeId& node, Outlook outlook) {
    if (outlook != Outlook::refused) growth_.needed.insert(node);
    if (outlook != Outlook::good) growth_.half.insert(node);
  }

  void give(const WaitingJob& job, const std::vector<PlacedShare>& shares) {
    Outlook outlook = Outlook::good;
    for (const PlacedShare& share : shares) {
      outlook = std::max(outlook, places_[index_.at(share.node)].outlook);
    }
    std::vector<const PlacedShare*> here;
    std::vector<const ComingMachine*> coming;
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
      if (place.kind != Kind::coming) {
        hold(share.node, outlook);
        here.push_back(&share);
        continue;
      }
      growth_.needed.insert(share.node);
      any_moment = any_moment && place.machine->runs;
      coming.push_back(place.machine);
    }
    if (waits && any_moment) {
      for (const PlacedShare* share : here) growth_.kept[share->node].push_back(*share);
    }
    if (coming.empty()) return;
    growth_.reasons[job.job] =
        in_allocations_ ? waits_for(coming) : are_coming(coming, shares.size());
  }

  // Here, soon, coming, and to be asked for; what is beside them in the other list is of the same.
  std::vector<NodeCapacity> nodes_;
  std::vector<Place> places_;
  std::map<NodeId, std::size_t> index_;
  std::vector<Offer> offers_;
  const bool in_allocations_;
  const int most_;                 // there may be, of all types
  int left_;                       // more
  Outlook worst_ = Outlook::good;  // of those asked for
  const CostLimit limit_;
  double cost_;       // of all that there are, are to come and are asked for
  std::string dear_;  // why(), and what those cost
  double dear_price_ = 0;
  std::string room_;  // what there is too little of, where it is short of that
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
  std::map<Demand, std::string> in_vain;  // what is free only shrinks; why, if it costs too much
  std::size_t looked_at = 0;
  for (const WaitingJob* job : in_turn(queue)) {
    if (looked_at == kGrowthDepth) break;
    if (!job->held.empty()) continue;
    if (const auto known = in_vain.find(job->demand); known != in_vain.end()) {
      if (!known->second.empty()) grower.say(job->job, known->second);
      continue;
    }
    ++looked_at;
    if (!grower.serve(*job)) in_vain.emplace(job->demand, grower.why());
  }
  return std::move(grower).take();
}

std::string never_fits(const std::vector<NodeCapacity>& nodes, const Demand& demand,
                       const MachinesToCome& machines) {
  const std::vector<NodeCapacity> empty = emptied(nodes);
  WaitingJob job;
  job.demand = demand;
  Grower grower(empty, {}, machines);
  if (grower.serve(job)) return {};
  if (std::string why = grower.always_too_dear(demand); !why.empty()) return why;
  Demand part = demand;
  part.nnodes = {1, 1};
  std::vector<NodeCapacity> each;
  for (const MachineType& type : machines.types) {
    each.push_back(one_of(type, NodeId("each " + type.name), " "));
  }
  const Placement one = place_in_order(each, part);
  if (!one.shares) return one.reason;
  return place(empty, demand).reason + "; there may be " + std::to_string(machines.most) +
         " machines at most";
}

}  // namespace dtrain::head

#include "launcher/cluster/plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kHashLength = 16;

// node-2 before node-10.
auto in_order(const Machine& machine) {
  return std::pair(machine.node.str().size(), std::string_view(machine.node.str()));
}

bool came_before(const Machine& a, const Machine& b) {
  return std::tie(a.created, a.id) < std::tie(b.created, b.id);
}

std::string called(const Machine& machine) {
  return machine.id.empty() ? machine.node.str() : machine.id;
}

class Decision {
 public:
  Decision(const std::vector<WantedNode>& wanted, const SeenNodes& seen, bool replace)
      : wanted_(wanted),
        seen_(seen),
        replace_(replace),
        by_type_(!wanted.empty() && wanted.front().node.empty()) {
    for (const Machine& machine : seen.there) {
      listed_.insert(key_of(machine));
      if (machine.state != MachineState::gone) taken_.insert(machine.node);
      // Those of the head's that are stopped it starts itself, when jobs need them.
      const bool is_there = is_live(machine.state) || machine.state == MachineState::stopped;
      if (is_there) (machine.joins ? joined_ : live_).push_back(machine);
    }
    for (const KnownNode& known : seen.known) {
      known_.insert(known.machine.node);
      const bool other = !taken_.insert(known.machine.node).second;
      if (!other && is_missed(known)) live_.push_back(known.machine);
    }
    std::stable_sort(live_.begin(), live_.end(), came_before);
  }

  ClusterPlan make() && {
    choose_cluster();
    for (const Machine& machine : joined_) {
      const bool counts = machine.cluster == plan_.cluster && is_live(machine.state);
      if (counts) ++in_place_[machine.type];
    }
    drop_others();
    drop_twins();
    chosen_.resize(live_.size());
    for (std::size_t i = 0; i < live_.size(); ++i) index_.emplace(live_[i].node, i);
    for (const WantedNode& wanted : wanted_) {
      if (!wanted.head) ++asked_[wanted.type];
      if (wanted.node.empty()) {
        fill(wanted);
      } else {
        fill_named(wanted);
      }
    }
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (!chosen_[i]) release(live_[i], surplus(live_[i]));
    }
    for (const NodePlan& each : plan_.nodes) planned_.insert(each.machine.node);
    for (const NodePlan& each : going_) planned_.insert(each.machine.node);
    for (const KnownNode& known : seen_.known) leave(known);
    std::stable_sort(going_.begin(), going_.end(), [](const NodePlan& a, const NodePlan& b) {
      return in_order(a.machine) < in_order(b.machine);
    });
    plan_.nodes.insert(plan_.nodes.end(), going_.begin(), going_.end());
    return std::move(plan_);
  }

 private:
  using Key = std::pair<NodeId, std::string>;
  static Key key_of(const Machine& machine) { return {machine.node, machine.id}; }

  bool is_made(const Machine& machine) const { return seen_.made.contains(machine.id); }

  // There, and not in the provider's list, which is older.
  bool is_missed(const KnownNode& known) const {
    return by_type_ && known.noted && known.head == KnownNode::Head::hears &&
           !known.machine.id.empty() && !listed_.contains(key_of(known.machine));
  }

  // That of the head which was made first. Where this `up` made it, another head is for whoever
  // made that one to give back.
  void choose_cluster() {
    const Machine* first = nullptr;
    for (const Machine& machine : live_) {
      if (!machine.head || machine.cluster.empty()) continue;
      headed_.insert(machine.cluster);
      if (first == nullptr) {
        first = &machine;
        plan_.cluster = machine.cluster;
      } else if (machine.cluster != plan_.cluster && !is_made(machine) && !is_made(*first)) {
        plan_.refused = "there are two clusters of this name: " + plan_.cluster.str() +
                        ", whose head is " + called(*first) + ", and " + machine.cluster.str() +
                        ", whose head is " + called(machine);
      }
    }
    if (first != nullptr) return;
    // This `up` has made some, and its head is not there yet, or could not be had.
    for (const Machine& machine : live_) {
      if (is_made(machine)) plan_.cluster = machine.cluster;
    }
    if (!plan_.cluster.empty()) return;
    // What runs on them may go on without a head: nobody ends that unasked.
    for (const std::vector<Machine>* machines : {&live_, &joined_}) {
      for (const Machine& machine : *machines) {
        if (machine.cluster.empty()) continue;
        plan_.refused = "the head of " + machine.cluster.str() +
                        " is gone, and machines of it are there: dtrain down gives them back";
        return;
      }
    }
  }

  void drop_others() {
    std::erase_if(live_, [&](const Machine& machine) {
      if (machine.cluster.empty() || machine.cluster == plan_.cluster) return false;
      if (is_made(machine)) {
        release(machine, "another up made this cluster at the same time, and before");
      } else if (!headed_.contains(machine.cluster)) {
        release(machine, "of " + machine.cluster.str() + ", which has no head");
      }
      return true;
    });
  }

  void drop_twins() {
    std::map<NodeId, std::string> first;
    std::erase_if(live_, [&](const Machine& machine) {
      const auto [it, fresh] = first.emplace(machine.node, called(machine));
      if (!fresh) release(machine, "there twice: " + it->second + " came first");
      return !fresh;
    });
  }

  void fill_named(const WantedNode& wanted) {
    const auto found = index_.find(wanted.node);
    if (found == index_.end() || chosen_[found->second]) return create(wanted, wanted.node);
    chosen_[found->second] = true;
    const Machine& machine = live_[found->second];
    if (machine.outdated) {
      return create(wanted, wanted.node, "what waits was asked for otherwise");
    }
    keep(wanted, machine);
  }

  // The machines that may be such a node, the best last. What is the head is so whatever its type:
  // it is the one that there is.
  std::vector<std::size_t>& candidates(const WantedNode& wanted) {
    const auto [found, fresh] =
        candidates_.try_emplace({wanted.head, wanted.head ? "" : wanted.type, wanted.launch});
    if (!fresh) return found->second;
    using Rank = std::tuple<bool, bool, bool, std::size_t, std::string>;
    std::vector<std::pair<Rank, std::size_t>> ranked;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const Machine& machine = live_[i];
      if (machine.head != wanted.head) continue;
      if (!wanted.head && machine.type != wanted.type) continue;
      ranked.push_back(
          {{machine.launch != wanted.launch, machine.state == MachineState::stopped,
            machine.state != MachineState::running, machine.node.str().size(), machine.node.str()},
           i});
    }
    std::sort(ranked.rbegin(), ranked.rend());
    for (const auto& [rank, i] : ranked) found->second.push_back(i);
    return found->second;
  }

  void fill(const WantedNode& wanted) {
    std::vector<std::size_t>& left = candidates(wanted);
    while (!left.empty() && chosen_[left.back()]) left.pop_back();
    if (left.empty()) {
      // One that the head has asked for stands in the place of one that was lost.
      int& others = in_place_[wanted.type];
      if (!wanted.head && others > 0) {
        --others;
        return;
      }
      return create(wanted, free_name(wanted.head));
    }
    const std::size_t best = left.back();
    chosen_[best] = true;
    Machine machine = live_[best];
    const bool same = machine.launch == wanted.launch && machine.type == wanted.type;
    if (same) return keep(wanted, std::move(machine));
    if (replace_ && !wanted.head) {
      plan_.nodes.push_back(
          {NodeAction::replace, std::move(machine), "made by another launch configuration"});
      return;
    }
    const NodeAction action = there(machine);
    plan_.nodes.push_back({action, std::move(machine),
                           wanted.head && replace_
                               ? "made by another launch configuration; the head is made anew only "
                                 "by down and up"
                               : "made by another launch configuration; up --replace makes it anew",
                           true});
  }

  NodeAction there(const Machine& machine) {
    if (machine.state != MachineState::stopped) return NodeAction::keep;
    starts_head_ = starts_head_ || machine.head;
    return NodeAction::start;
  }

  void keep(const WantedNode& wanted, Machine machine) {
    machine.head = wanted.head;
    std::string reason =
        known_.contains(machine.node) ? "in the cluster" : "not in the cluster yet";
    if (by_type_ && !listed_.contains(key_of(machine))) {
      reason += ", though the provider does not list its machine";
    }
    if (machine.state == MachineState::pending) {
      reason = "on its way" + (machine.reason.empty() ? "" : ": " + machine.reason);
    }
    if (machine.state == MachineState::stopped) {
      reason = "its machine is stopped" + (machine.reason.empty() ? "" : ": " + machine.reason);
    }
    const NodeAction action = there(machine);
    plan_.nodes.push_back({action, std::move(machine), std::move(reason)});
  }

  void create(const WantedNode& wanted, const NodeId& node, std::string reason = "") {
    if (reason.empty()) {
      reason = known_.contains(node) ? "its machine is gone" : "there is none yet";
    }
    Machine machine;
    machine.node = node;
    machine.type = wanted.type;
    machine.launch = wanted.launch;
    machine.head = wanted.head;
    machine.state = MachineState::pending;
    machine.cluster = plan_.cluster;
    taken_.insert(node);
    plan_.nodes.push_back({NodeAction::create, std::move(machine), std::move(reason)});
  }

  NodeId free_name(bool head) {
    int others = 0;  // the head has the first name that is free
    for (int& i = head ? others : next_name_;; ++i) {
      NodeId node("node-" + std::to_string(i));
      if (!taken_.contains(node)) return node;
    }
  }

  void release(const Machine& machine, std::string reason) {
    going_.push_back({NodeAction::release, machine, std::move(reason)});
  }

  std::string surplus(const Machine& machine) const {
    if (machine.type.empty()) return "no longer in the YAML";
    const auto found = asked_.find(machine.type);
    const std::size_t asked = found == asked_.end() ? 0 : found->second;
    return std::to_string(asked) + " of type " + machine.type +
           (asked == 1 ? " is wanted" : " are wanted");
  }

  // Nodes of the cluster that the provider has no machine for.
  void leave(const KnownNode& known) {
    Machine machine = known.machine;
    if (known.joined || !planned_.insert(machine.node).second) return;
    const std::string& node = machine.node.str();
    if (!by_type_) {
      if (known.noted) return release(machine, "no longer in the YAML");
      plan_.warnings.push_back(node +
                               " is in the cluster and not in this YAML; up with it taken out, or "
                               "down, where it was brought up removes it");
    } else if (known.head == KnownNode::Head::hears && !listed_gone(machine)) {
      plan_.warnings.push_back(node +
                               " is in the cluster, and the provider does not list its machine: "
                               "it stays");
    } else if (known.head == KnownNode::Head::unasked && starts_head_) {
      return;  // once it runs it can be asked
    } else if (known.head == KnownNode::Head::unasked && !machine.id.empty() &&
               !listed_gone(machine)) {
      plan_.warnings.push_back(node + " (" + machine.id +
                               "): the provider does not list its machine, and the head cannot be "
                               "asked: it may be there still");
    } else {
      machine.state = MachineState::gone;
      release(machine, "its machine is gone");
    }
  }

  // The provider says that it is gone, or will be; a node that only the head knows has no id here.
  bool listed_gone(const Machine& machine) const {
    if (!machine.id.empty()) return listed_.contains(key_of(machine));
    const auto found = listed_.lower_bound({machine.node, ""});
    return found != listed_.end() && found->first == machine.node;
  }

  const std::vector<WantedNode>& wanted_;
  const SeenNodes& seen_;
  const bool replace_;
  const bool by_type_;                   // machines are made; else the YAML lists them
  std::set<Key> listed_;                 // by the provider, whatever their state
  std::vector<Machine> live_;            // by age
  std::vector<Machine> joined_;          // those that the head has asked for,
  std::map<std::string, int> in_place_;  // and how many of them no wanted one counts, by type
  std::vector<bool> chosen_;             // of live_: those that stay
  std::map<NodeId, std::size_t> index_;
  std::map<std::tuple<bool, std::string, std::string>, std::vector<std::size_t>> candidates_;
  std::map<std::string, std::size_t> asked_;  // workers, by type
  std::set<NodeId> known_;
  std::set<NodeId> planned_;
  std::set<NodeId> taken_;  // names
  int next_name_ = 1;       // none before it is free
  std::set<ClusterId> headed_;
  bool starts_head_ = false;  // it is stopped
  std::vector<NodePlan> going_;
  ClusterPlan plan_;
};

}  // namespace

std::vector<WantedNode> wanted_nodes(const ClusterSpec& spec) {
  std::map<std::string, std::string> hashes;
  std::vector<WantedNode> wanted;
  for (const PromisedNode& node : spec.promised()) {
    const auto [hash, fresh] = hashes.emplace(node.type, "");
    if (fresh) hash->second = launch_hash(spec, node.type);
    wanted.push_back({node.node, node.type, hash->second, wanted.empty()});
  }
  return wanted;
}

std::string launch_hash(const ClusterSpec& spec, const std::string& type) {
  for (const NodeType& each : spec.node_types) {
    if (each.name != type) continue;
    nlohmann::json provider = spec.provider.other;
    // Rules are put where the machine is.
    const auto group = provider.find("security_group");
    if (group != provider.end() && group->is_object()) group->erase("IpPermissions");
    if (group != provider.end() && group->empty()) provider.erase(group);
    nlohmann::json made{{"node_config", each.node_config}, {"provider", std::move(provider)}};
    if (each.efa) made["efa"] = true;
    if (!each.placement_group.empty()) made["placement_group"] = each.placement_group;
    Sha256 sum;
    sum.add(made.dump());
    return sum.hex().substr(0, kHashLength);
  }
  return {};
}

const char* to_string(NodeAction action) noexcept {
  switch (action) {
    case NodeAction::keep:
      return "keep";
    case NodeAction::start:
      return "start";
    case NodeAction::create:
      return "create";
    case NodeAction::replace:
      return "replace";
    case NodeAction::release:
      return "release";
  }
  return "?";
}

ClusterPlan decide(const std::vector<WantedNode>& wanted, const SeenNodes& seen, bool replace) {
  return Decision(wanted, seen, replace).make();
}

bool has_action(const ClusterPlan& plan, NodeAction action) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(),
                     [&](const NodePlan& each) { return each.action == action; });
}

}  // namespace dtrain

#include "launcher/cluster/plan.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kHashLength = 16;

bool is_live(const Machine& machine) {
  return machine.state == MachineState::pending || machine.state == MachineState::running;
}

// node-2 before node-10.
auto in_order(const Machine& machine) {
  return std::pair(machine.node.str().size(), machine.node.str());
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
      : wanted_(wanted), seen_(seen), replace_(replace) {
    for (const Machine& machine : seen.there) {
      if (machine.state != MachineState::gone) taken_.insert(machine.node);
      if (is_live(machine)) live_.push_back(machine);
    }
    for (const Machine& machine : seen.known) {
      taken_.insert(machine.node);
      known_.insert(machine.node);
    }
    std::stable_sort(live_.begin(), live_.end(), came_before);
  }

  ClusterPlan make() && {
    choose_cluster();
    drop_others();
    drop_twins();
    chosen_.resize(live_.size());
    for (std::size_t i = 0; i < live_.size(); ++i) index_.emplace(live_[i].node, i);
    for (const WantedNode& wanted : wanted_) {
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
    for (const Machine& machine : seen_.known) leave(machine);
    std::stable_sort(going_.begin(), going_.end(), [](const NodePlan& a, const NodePlan& b) {
      return in_order(a.machine) < in_order(b.machine);
    });
    plan_.nodes.insert(plan_.nodes.end(), going_.begin(), going_.end());
    return std::move(plan_);
  }

 private:
  bool is_made(const Machine& machine) const { return seen_.made.contains(machine.id); }

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
    for (const Machine& machine : live_) {
      if (machine.cluster.empty()) continue;
      plan_.refused = "the head of " + machine.cluster.str() + " is gone, and machines of it are " +
                      "there: dtrain down gives them back";
      return;
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
    keep(wanted, live_[found->second]);
  }

  void fill(const WantedNode& wanted) {
    const auto rank = [&](const Machine& machine) {
      return std::tuple(machine.launch != wanted.launch, machine.state != MachineState::running,
                        in_order(machine));
    };
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      // What is the head is so whatever its type: it is the one that there is.
      if (chosen_[i] || live_[i].head != wanted.head) continue;
      if (!wanted.head && live_[i].type != wanted.type) continue;
      if (!best || rank(live_[i]) < rank(live_[*best])) best = i;
    }
    if (!best) return create(wanted, free_name(wanted.head));
    chosen_[*best] = true;
    Machine machine = live_[*best];
    const bool same = machine.launch == wanted.launch && machine.type == wanted.type;
    if (same) return keep(wanted, std::move(machine));
    if (replace_ && !wanted.head) {
      plan_.nodes.push_back(
          {NodeAction::replace, std::move(machine), "made by another launch configuration"});
      return;
    }
    plan_.nodes.push_back({NodeAction::keep, std::move(machine),
                           wanted.head && replace_
                               ? "made by another launch configuration; the head is made anew only "
                                 "by down and up"
                               : "made by another launch configuration; up --replace makes it anew",
                           true});
  }

  void keep(const WantedNode& wanted, Machine machine) {
    machine.head = wanted.head;
    std::string reason =
        known_.contains(machine.node) ? "in the cluster" : "not in the cluster yet";
    if (machine.state == MachineState::pending) {
      reason = "on its way" + (machine.reason.empty() ? "" : ": " + machine.reason);
    }
    plan_.nodes.push_back({NodeAction::keep, std::move(machine), std::move(reason)});
  }

  void create(const WantedNode& wanted, const NodeId& node) {
    Machine machine;
    machine.node = node;
    machine.type = wanted.type;
    machine.launch = wanted.launch;
    machine.head = wanted.head;
    machine.state = MachineState::pending;
    machine.cluster = plan_.cluster;
    taken_.insert(node);
    plan_.nodes.push_back({NodeAction::create, std::move(machine),
                           known_.contains(node) ? "its machine is gone" : "there is none yet"});
  }

  NodeId free_name(bool head) {
    int others = 0;  // the head has the first name that is free
    for (int& i = head ? others : next_name_;; ++i) {
      const NodeId node("node-" + std::to_string(i));
      if (!taken_.contains(node)) return node;
    }
  }

  void release(const Machine& machine, std::string reason) {
    going_.push_back({NodeAction::release, machine, std::move(reason)});
  }

  std::string surplus(const Machine& machine) const {
    if (machine.type.empty()) return "no longer in the YAML";
    const auto asked = std::count_if(wanted_.begin(), wanted_.end(), [&](const WantedNode& wanted) {
      return !wanted.head && wanted.type == machine.type;
    });
    return std::to_string(asked) + " of type " + machine.type +
           (asked == 1 ? " is wanted" : " are wanted");
  }

  // Nodes of the cluster that the provider has no machine for.
  void leave(const Machine& known) {
    if (!planned_.insert(known.node).second) return;
    const bool made = !wanted_.empty() && wanted_.front().node.empty();
    Machine machine = known;
    if (made) machine.state = MachineState::gone;
    release(machine, made ? "its machine is gone" : "no longer in the YAML");
  }

  const std::vector<WantedNode>& wanted_;
  const SeenNodes& seen_;
  const bool replace_;
  std::vector<Machine> live_;  // by age
  std::vector<bool> chosen_;   // of live_: those that stay
  std::map<NodeId, std::size_t> index_;
  std::set<NodeId> known_;
  std::set<NodeId> planned_;
  std::set<NodeId> taken_;  // names
  int next_name_ = 1;       // none before it is free
  std::set<ClusterId> headed_;
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
    Sha256 sum;
    sum.add(nlohmann::json{{"node_config", each.node_config}, {"provider", spec.provider.other}}
                .dump());
    return sum.hex().substr(0, kHashLength);
  }
  return {};
}

const char* to_string(NodeAction action) noexcept {
  switch (action) {
    case NodeAction::keep:
      return "keep";
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

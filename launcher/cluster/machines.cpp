#include "launcher/cluster/machines.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

// The latest word on each machine.
class Words {
 public:
  explicit Words(OutcomeSink tell) : tell_(std::move(tell)) {}

  OutcomeSink sink() {
    return [this](const MachineOutcome& outcome) {
      last_.insert_or_assign(key(outcome.machine), outcome);
      last_of_.insert_or_assign(outcome.machine.node, outcome);
      if (tell_) tell_(outcome);
    };
  }
  const MachineOutcome* of(const Machine& machine) const {
    const auto found = last_.find(key(machine));
    return found == last_.end() ? nullptr : &found->second;
  }
  // What is asked for has no id yet.
  const MachineOutcome* of(const NodeId& node) const {
    const auto found = last_of_.find(node);
    return found == last_of_.end() ? nullptr : &found->second;
  }
  std::optional<Error> first_error() const {
    for (const auto& [node, outcome] : last_of_) {
      if (outcome.error) return outcome.error;
    }
    return std::nullopt;
  }

 private:
  using Key = std::pair<NodeId, std::string>;
  static Key key(const Machine& machine) { return {machine.node, machine.id}; }

  OutcomeSink tell_;
  std::map<Key, MachineOutcome> last_;
  std::map<NodeId, MachineOutcome> last_of_;
};

std::vector<Request> requests_of(const ClusterPlan& plan) {
  std::map<std::tuple<bool, std::string, std::string>, Request> requests;
  for (const NodePlan& each : plan.nodes) {
    if (each.action != NodeAction::create) continue;
    const Machine& machine = each.machine;
    // The head's first.
    Request& request = requests[{!machine.head, machine.type, machine.launch}];
    request.type = machine.type;
    request.head = machine.head;
    request.cluster = machine.cluster.empty() ? plan.cluster : machine.cluster;
    request.launch = machine.launch;
    request.nodes.push_back(machine.node);
  }
  std::vector<Request> all;
  for (auto& [key, request] : requests) all.push_back(std::move(request));
  return all;
}

// Asks for what the plan creates; gives the ids of what was made.
std::set<std::string> create(Provider& provider, const ClusterPlan& plan, Words& words) {
  std::set<std::string> made;
  const OutcomeSink sink = words.sink();
  provider.create(requests_of(plan), [&](const MachineOutcome& outcome) {
    if (!outcome.error && !outcome.machine.id.empty()) made.insert(outcome.machine.id);
    sink(outcome);
  });
  return made;
}

// What this `up` made and another's stands in its place.
std::vector<Machine> take_lost(ClusterPlan& plan, const std::set<std::string>& made) {
  std::vector<Machine> lost;
  std::erase_if(plan.nodes, [&](const NodePlan& each) {
    const bool is_lost = each.action == NodeAction::release && made.contains(each.machine.id);
    if (is_lost) lost.push_back(each.machine);
    return is_lost;
  });
  return lost;
}

Error unsaid() {
  return {ErrorCode::failed, "the provider has not said what became of it"};
}

void check(MachineOutcome& outcome, bool stopped) {
  if (outcome.error || outcome.machine.state == MachineState::running) return;
  const std::string& reason = outcome.machine.reason;
  const std::string why = reason.empty() ? "" : ": " + reason;
  if (outcome.machine.state == MachineState::pending) {
    outcome.error = Error(stopped ? ErrorCode::failed : ErrorCode::timeout,
                          "its machine is still pending" + why);
  } else {
    outcome.error =
        Error(ErrorCode::failed,
              "its machine is " + std::string(to_string(outcome.machine.state)) + " again" + why);
  }
}

}  // namespace

std::vector<MachineOutcome> make_machines(
    Provider& provider, ClusterPlan& plan,
    const std::function<ClusterPlan(const std::set<std::string>& made)>& again,
    const MachineWork& work) {
  Words words(work.tell);
  const std::set<std::string> made = create(provider, plan, words);
  if (!made.empty()) {
    ClusterPlan now = again(made);
    if (!now.refused.empty()) throw Error(ErrorCode::conflict, now.refused);
    const std::vector<Machine> lost = take_lost(now, made);
    if (!lost.empty()) {
      give_back(provider, lost, work);
      plan = std::move(now);
    }
  }

  std::vector<MachineOutcome> outcomes;
  std::vector<Machine> pending;
  for (const NodePlan& each : plan.nodes) {
    if (each.action != NodeAction::keep && each.action != NodeAction::create) continue;
    MachineOutcome outcome{each.machine, std::nullopt};
    if (each.action == NodeAction::create) {
      if (const MachineOutcome* told = words.of(each.machine.node)) {
        outcome = *told;
      } else {
        outcome.error = words.first_error().value_or(
            Error(ErrorCode::conflict, "another up was at work: the next one asks for it"));
      }
    }
    if (!outcome.error && outcome.machine.state == MachineState::pending) {
      pending.push_back(outcome.machine);
    }
    outcomes.push_back(std::move(outcome));
  }
  if (!pending.empty()) provider.follow(pending, words.sink(), work.stop);
  for (MachineOutcome& outcome : outcomes) {
    const MachineOutcome* told = outcome.error ? nullptr : words.of(outcome.machine);
    if (told != nullptr) outcome = *told;
    check(outcome, work.stop.stop_requested());
  }
  return outcomes;
}

std::vector<MachineOutcome> give_back(Provider& provider, const std::vector<Machine>& machines,
                                      const MachineWork& work) {
  Words words(work.tell);
  provider.release(machines, words.sink());
  std::vector<Machine> stopping;
  for (const Machine& machine : machines) {
    const MachineOutcome* told = words.of(machine);
    if (told != nullptr && !told->error && told->machine.state == MachineState::stopping) {
      stopping.push_back(told->machine);
    }
  }
  if (!stopping.empty()) provider.follow(stopping, words.sink(), work.stop);
  std::vector<MachineOutcome> outcomes;
  for (const Machine& machine : machines) {
    const MachineOutcome* told = words.of(machine);
    outcomes.push_back(told != nullptr ? *told : MachineOutcome{machine, unsaid()});
  }
  return outcomes;
}

}  // namespace dtrain

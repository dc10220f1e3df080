#include "launcher/cluster/machines.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

using Key = std::pair<NodeId, std::string>;
Key key_of(const Machine& machine) {
  return {machine.node, machine.id};
}

// The latest word on each machine.
class Words {
 public:
  explicit Words(OutcomeSink tell) : tell_(std::move(tell)) {}

  OutcomeSink sink() {
    return [this](const MachineOutcome& outcome) {
      last_.insert_or_assign(key_of(outcome.machine), outcome);
      last_of_.insert_or_assign(outcome.machine.node, outcome);
      if (tell_) tell_(outcome);
    };
  }
  const MachineOutcome* of(const Machine& machine) const {
    const auto found = last_.find(key_of(machine));
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

struct Made {
  std::vector<Machine> machines;  // nothing that was there before
  std::optional<Error> broken;    // why it has not asked for all
};

Made create(Provider& provider, const ClusterPlan& plan, const std::vector<Request>& requests,
            std::set<std::string> before, Words& words) {
  if (requests.empty()) return {};
  // A provider may tell what is there as it is.
  for (const NodePlan& each : plan.nodes) before.insert(each.machine.id);
  Made made;
  const OutcomeSink sink = words.sink();
  try {
    provider.create(requests, [&](const MachineOutcome& outcome) {
      const Machine& machine = outcome.machine;
      const bool is_new = !machine.id.empty() && !before.contains(machine.id);
      if (!outcome.error && is_new) made.machines.push_back(machine);
      sink(outcome);
    });
  } catch (const std::exception& thrown) {
    if (made.machines.empty()) throw;
    made.broken = as_defect(thrown);
  }
  return made;
}

// What is stopped, the head's first: without a head none of the others is of use.
void start(Provider& provider, const ClusterPlan& plan, Words& words) {
  for (const bool head : {true, false}) {
    std::vector<Machine> machines;
    for (const NodePlan& each : plan.nodes) {
      const bool is_meant = each.action == NodeAction::start && each.machine.head == head;
      if (is_meant) machines.push_back(each.machine);
    }
    if (machines.empty()) continue;
    provider.start(machines, words.sink());
    if (!head) continue;
    const MachineOutcome* told = words.of(machines.front());
    if (told != nullptr && told->error) throw Error(*told->error);
  }
}

// "node-1 (i-0abc)"
std::string in_full(const Machine& machine) {
  return machine.node.str() + " (" + machine.id + ")";
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

MachineOutcome checked(MachineOutcome outcome, bool stopped) {
  if (outcome.error || outcome.machine.state == MachineState::running) return outcome;
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
  return outcome;
}

// What this `up` has made stays nobody's: it goes, and what was there before stays.
[[noreturn]] void refuse(Provider& provider, const std::vector<Machine>& made,
                         const std::string& why, const MachineWork& work) {
  std::vector<std::string> left;
  for (const MachineOutcome& outcome : give_back(provider, made, work)) {
    if (outcome.error) left.push_back(in_full(outcome.machine) + ": " + outcome.error->message());
  }
  Error error(ErrorCode::conflict, why);
  if (!left.empty()) {
    error.with_hint("what was made could not be given back: " + join(left, ", ") +
                    "; dtrain down does it");
  }
  throw error;
}

}  // namespace

std::vector<MachineOutcome> ask_for_machines(
    Provider& provider, ClusterPlan& plan,
    const std::function<ClusterPlan(const std::set<std::string>& made)>& again,
    const MachineWork& work, const std::set<std::string>& known) {
  Words words(work.tell);
  // What one of them cannot have is known before the first costs.
  const std::vector<Request> requests = requests_of(plan);
  provider.prepare(requests);
  start(provider, plan, words);
  const Made made = create(provider, plan, requests, known, words);
  if (!made.machines.empty()) {
    std::set<std::string> ids;
    std::vector<std::string> names;
    for (const Machine& machine : made.machines) {
      ids.insert(machine.id);
      names.push_back(in_full(machine));
    }
    const std::string what_becomes = "it has made " + join(names, ", ") +
                                     ": dtrain up goes on with them, dtrain down gives them back";
    ClusterPlan now;
    try {
      now = again(ids);
    } catch (Error& error) {
      error.with_hint(what_becomes);
      throw;
    } catch (const std::exception& error) {
      throw as_defect(error).with_hint(what_becomes);
    }
    if (!now.refused.empty()) refuse(provider, made.machines, now.refused, work);
    const std::vector<Machine> lost = take_lost(now, ids);
    if (!lost.empty()) {
      give_back(provider, lost, work);
      plan = std::move(now);
    }
  }

  std::vector<MachineOutcome> outcomes;
  for (const NodePlan& each : plan.nodes) {
    if (each.action == NodeAction::release || each.action == NodeAction::replace) continue;
    MachineOutcome outcome{each.machine, std::nullopt};
    if (const MachineOutcome* told = words.of(each.machine); told != nullptr) outcome = *told;
    if (each.action == NodeAction::create) {
      if (const MachineOutcome* told = words.of(each.machine.node)) {
        outcome = *told;
      } else {
        outcome.error =
            made.broken
                ? *made.broken
                : words.first_error().value_or(Error(
                      ErrorCode::conflict, "another up was at work: the next one asks for it"));
      }
    }
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

void follow_machines(
    Provider& provider, const std::vector<MachineOutcome>& asked, const MachineWork& work,
    const std::function<void(std::size_t number, const MachineOutcome& outcome)>& arrived) {
  std::vector<Machine> machines;
  std::map<Key, std::size_t> pending;
  std::vector<MachineOutcome> latest = asked;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Machine& machine = asked[i].machine;
    if (!asked[i].error && machine.state == MachineState::pending) {
      pending.emplace(key_of(machine), i);
      machines.push_back(machine);
    } else {
      arrived(i, checked(asked[i], false));
    }
  }
  if (machines.empty()) return;
  const auto sink = [&](const MachineOutcome& outcome) {
    if (work.tell) work.tell(outcome);
    const auto found = pending.find(key_of(outcome.machine));
    if (found == pending.end()) return;
    const std::size_t i = found->second;
    latest[i] = outcome;
    if (!outcome.error && outcome.machine.state == MachineState::pending) return;
    pending.erase(found);
    arrived(i, checked(outcome, false));
  };
  std::optional<Error> broken;
  try {
    provider.follow(machines, sink, work.stop);
  } catch (const std::exception& thrown) {
    broken = as_defect(thrown);
  }
  for (const auto& [key, i] : pending) {
    if (broken) latest[i].error = broken;
    arrived(i, checked(latest[i], work.stop.stop_requested()));
  }
}

std::vector<MachineOutcome> release_machines(Provider& provider,
                                             const std::vector<Machine>& machines,
                                             const OutcomeSink& tell) {
  Words words(tell);
  Error unsaid(ErrorCode::failed, "the provider has not said what became of it");
  try {
    provider.release(machines, words.sink());
  } catch (const Error& error) {
    unsaid = error;
  }
  std::vector<MachineOutcome> outcomes;
  for (const Machine& machine : machines) {
    // One whose id nobody knows yet is told of by the one that it turns out to have.
    const MachineOutcome* told = machine.id.empty() ? words.of(machine.node) : words.of(machine);
    outcomes.push_back(told != nullptr ? *told : MachineOutcome{machine, unsaid});
  }
  return outcomes;
}

void follow_to_end(Provider& provider, std::vector<MachineOutcome>& released,
                   const MachineWork& work) {
  std::vector<Machine> stopping;
  for (const MachineOutcome& each : released) {
    if (!each.error && each.machine.state == MachineState::stopping) {
      stopping.push_back(each.machine);
    }
  }
  if (stopping.empty()) return;
  Words words(work.tell);
  std::optional<Error> broken;
  try {
    provider.follow(stopping, words.sink(), work.stop);
  } catch (const Error& error) {
    broken = error;
  }
  for (MachineOutcome& each : released) {
    if (each.error || each.machine.state != MachineState::stopping) continue;
    if (const MachineOutcome* told = words.of(each.machine)) each = *told;
    if (each.machine.state == MachineState::stopping && !each.error) each.error = broken;
  }
}

std::vector<MachineOutcome> give_back(Provider& provider, const std::vector<Machine>& machines,
                                      const MachineWork& work) {
  std::vector<MachineOutcome> outcomes = release_machines(provider, machines, work.tell);
  follow_to_end(provider, outcomes, work);
  return outcomes;
}

}  // namespace dtrain

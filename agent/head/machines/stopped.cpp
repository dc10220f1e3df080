#include <algorithm>
#include <utility>

#include "agent/head/machines/keeper.hpp"
#include "launcher/core/log.hpp"

// Machines that are stopped: those that wait for later jobs, and those that somebody else has
// stopped. A node of one that is stopped is none of the cluster's; when its machine is started it
// comes under the same name, by a credential of its own.
namespace dtrain::head {

// Somebody has stopped it, or it stands from before its start was asked for: its credential counts
// no more.
void MachineKeeper::halted(const NodeId& node, const Machine& machine) {
  const std::string why = "its machine was stopped";
  log::warn("a machine was stopped", {{"node", node.str()}, {"id", machine.id}});
  hooks_.explain(node, why, machine.taken_back);
  if (lost_.erase(node) == 0) ended(node, machine.type, why);
  forget(node);
  remove(node, why);
}

// One that an `up` has made `up` starts; meanwhile it counts for nothing.
void MachineKeeper::see_stopped(const Machine& machine) {
  if (!machine.joins) return;
  moves_ = moves_ || !machine.can_start();
  stopped_.push_back(machine);
}

// Of so many that are asked for, how many are started in place of new ones.
int MachineKeeper::start_stopped(const std::string& type, int count,
                                 const std::shared_ptr<Asking>& asking) {
  const auto* wanted = type_of(type);
  if (wanted == nullptr) return 0;
  std::vector<Machine> ready;
  for (const Machine& machine : stopped_) {
    const auto tried = no_start_.find(machine.node);
    const bool waits = tried != no_start_.end() && clock_.now() - tried->second < kStartPause;
    const Engine::Presence now = hooks_.node(machine.node);  // it may be about to leave still
    const bool is_in = now == Engine::Presence::here || now == Engine::Presence::away;
    if (!waits && !is_in) ready.push_back(machine);
  }
  const std::vector<Machine> chosen = to_start(ready, *wanted, count);
  for (const Machine& machine : chosen) {
    const NodeId& node = machine.node;
    std::erase_if(stopped_, [&](const Machine& each) { return each.node == node; });
    forget(node);
    log::info("a stopped machine is started", {{"node", node.str()}, {"id", machine.id}});
    asking->start.push_back(machine);
    ++asking->open;
    const auto issued = [this, node, asking, guard = std::weak_ptr<int>(alive_)](
                            const std::string& script, const std::optional<Error>& failed) {
      if (!guard.lock()) return;
      if (failed) {
        log::warn("a stopped machine is not started",
                  {{"node", node.str()}, {"why", failed->what()}});
        no_start_[node] = clock_.now();
      } else {
        asking->scripts.emplace(node, script);
      }
      if (--asking->open == 0) act(asking);
    };
    try {
      hooks_.issue(node, type, wanted_.addresses, issued);
    } catch (const Error& error) {
      issued("", error);
    }
  }
  return static_cast<int>(chosen.size());
}

// What of those that are stopped is not to be kept, after what is asked for.
std::vector<MachineDecision::Release> MachineKeeper::surplus(const std::vector<Machine>& there,
                                                             const MachineDecision& decision,
                                                             const Asking& asking) const {
  if (stopped_.empty()) return {};
  std::map<std::string, int> others;
  for (const Machine& machine : there) ++others[machine.type];
  for (const MachineDecision::Release& each : decision.release) {
    if (each.stop) others[each.machines.front().type] += static_cast<int>(each.machines.size());
  }
  for (const Machine& machine : asking.start) ++others[machine.type];
  for (const Request& request : asking.requests) {
    others[request.type] += static_cast<int>(request.nodes.size());
  }
  return surplus_stopped(wanted_, std::move(others), stopped_);
}

// Those without a credential, or all where nothing is asked for any more.
void MachineKeeper::drop_unissued(Asking& asking, bool over) {
  std::erase_if(asking.start, [&](const Machine& machine) {
    const bool issued = asking.scripts.contains(machine.node);
    if (over && issued) remove(machine.node, "it was not started");
    return over || !issued;
  });
}

// What became of one that was to be stopped, or started. One that is not stopped runs without a
// node, and is given back at the next look; in the place of one that is not started another is
// made.
void MachineKeeper::turned(const MachineOutcome& outcome, const char* what) {
  const Machine& machine = outcome.machine;
  if (!outcome.error) {
    log::info(std::string("a machine is ") + what,
              {{"node", machine.node.str()}, {"id", machine.id}});
    no_start_.erase(machine.node);
    machines_.insert_or_assign(machine.node, machine);
    if (machine.state != MachineState::stopped) note_asked(machine);
    return;
  }
  log::warn(std::string("a machine is not ") + what,
            {{"node", machine.node.str()}, {"why", outcome.error->what()}});
  if (machine.state != MachineState::stopped) return;
  no_start_[machine.node] = clock_.now();
  remove(machine.node, "its machine cannot be started");
}

}  // namespace dtrain::head

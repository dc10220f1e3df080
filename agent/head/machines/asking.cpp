#include <exception>
#include <utility>

#include "agent/head/machines/keeper.hpp"
#include "launcher/core/log.hpp"

// From what there is to what is asked for and given back, and what comes of that.
namespace dtrain::head {

using Presence = Engine::Presence;

namespace {

constexpr const char* kContained = "#!/bin/sh\nset -- --contained\n";

}  // namespace

void MachineKeeper::decide() {
  const std::vector<NodeId> made = hooks_.made();
  const std::set<NodeId> may_come(made.begin(), made.end());
  std::vector<Machine> there;
  Groups useless;
  std::set<std::string> useful;
  Groups groups;
  moves_ = false;
  hopeless_.clear();
  stopped_.clear();
  for (auto& [node, machine] : machines_) {
    machine.price = account_.price_of(machine.id);
    groups[group_of(machine)].push_back(machine);
    if (machine.state == MachineState::stopped) {
      see_stopped(machine);
      continue;
    }
    const bool is_here_now = is_here(node);
    const bool is_lost = hooks_.node(node) == Presence::lost;
    const bool leaves = hooks_.leaves(node);
    if (!machine.joins && (is_lost || leaves || !is_awaited(node))) {
      hopeless_.insert(node);
      continue;
    }
    moves_ = moves_ || machine.state != MachineState::running || !is_here_now;
    if (!is_live(machine.state)) continue;
    if (!machine.joins) {
      there.push_back(machine);
      continue;
    }
    if (!is_useful(machine, may_come.contains(node))) {
      useless[group_of(machine)].push_back(machine);
      hopeless_.insert(node);
      continue;
    }
    useful.insert(group_of(machine));
    // Where its node is lost, or soon will be, another takes its place.
    if (!is_lost && !leaves) there.push_back(machine);
  }
  measure();
  const Growth growth = tell();
  MachineDecision decision = decide_machines(wanted_, there, in_use(growth));
  dear_ = stay_below(decision, wanted_, cost_limit(),
                     [&](const std::string& type) { return account_.most_of(type); });
  for (auto& [group, machines] : useless) {
    if (useful.contains(group)) continue;
    decision.release.push_back({std::move(machines), "its nodes do not come"});
  }
  const auto asking = std::make_shared<Asking>();
  asking->source = source_;
  const std::set<NodeId> drained = drained_;
  for (auto& each : decision.release)
    std::erase_if(there, [&](const Machine& machine) {
      return group_of(machine) == group_of(each.machines.front());
    });
  undo_drains(decision.release);
  give_back(decision.release, groups, *asking);
  if (drained_ != drained) {
    save(next_ ? *next_ : wanted_, [](const std::optional<Error>& failed) {
      if (failed) log::warn("what is to be given back is not kept", {{"why", failed->what()}});
    });
  }
  asking->open = 1;  // this call's own
  bool asks = false;
  for (const auto& [type, count] : decision.create) {
    moves_ = true;
    if (!failures_.may_ask(type, count)) continue;
    asks = true;
    ask_for(type, count, asking);
  }
  gangs_.clear();
  int open = asks ? 0 : kMostGangs;  // those that are to stand ready anyway may do
  for (const Growth::Gang& gang : growth.gangs) {
    moves_ = true;
    gangs_[gang.type] += gang.count;
    if (open == 0 || !failures_.may_ask(gang.type, gang.count)) continue;
    --open;
    ask_for(gang.type, gang.count, asking);
  }
  give_back(surplus(there, decision, *asking), groups, *asking);
  if (--asking->open == 0) act(asking);
}

// Its node is here, or may still come.
bool MachineKeeper::is_useful(const Machine& machine, bool may_come) {
  const NodeId& node = machine.node;
  if (is_here(node)) return true;
  const auto since = [&](const std::map<NodeId, Monotonic>& times) {
    const auto found = times.find(node);
    return found == times.end() ? Monotonic::duration::zero() : clock_.now() - found->second;
  };
  if (since(lost_) > kLostLimit) return false;
  const bool late = hooks_.node(node) == Presence::unseen && since(runs_) > kJoinLimit;
  if (may_come && !late) return true;
  if (runs_.contains(node)) {  // once
    ended(node, machine.type, "its machine runs, and nothing was heard of it");
    remove(node, "it did not join");
    runs_.erase(node);
  }
  return false;
}

// What is to stay after all takes ranks again.
void MachineKeeper::undo_drains(const std::vector<MachineDecision::Release>& release) {
  std::set<std::string> goes;
  for (const MachineDecision::Release& each : release) {
    goes.insert(group_of(each.machines.front()));
  }
  for (auto node = drained_.begin(); node != drained_.end();) {
    const auto machine = machines_.find(*node);
    if (machine != machines_.end() && goes.contains(group_of(machine->second))) {
      ++node;
      continue;
    }
    try {
      if (machine != machines_.end()) hooks_.drain(*node, true);
    } catch (const Error& error) {
      log::info("a node stays drained", {{"node", node->str()}, {"why", error.what()}});
    }
    node = drained_.erase(node);
  }
}

void MachineKeeper::give_back(const std::vector<MachineDecision::Release>& release,
                              const Groups& groups, Asking& asking) {
  if (release.empty()) return;
  moves_ = true;
  const std::map<NodeId, std::string> busy = hooks_.busy();
  for (const MachineDecision::Release& each : release) {
    const std::vector<Machine>& machines = groups.at(group_of(each.machines.front()));
    if (!may_go(machines, busy)) continue;
    for (const Machine& machine : machines) {
      log::info(each.stop ? "a machine is stopped" : "a machine is given back",
                {{"node", machine.node.str()}, {"why", each.reason}});
      remove(machine.node,
             (each.stop ? "its machine is stopped: " : "it is given back: ") + each.reason);
      if (each.stop) forget(machine.node);
    }
    std::vector<Machine>& all = each.stop ? asking.stop : asking.release;
    all.insert(all.end(), machines.begin(), machines.end());
  }
}

// False: what they are in use by is to end before.
bool MachineKeeper::may_go(const std::vector<Machine>& machines,
                           const std::map<NodeId, std::string>& busy) {
  bool idle = true;
  for (const Machine& machine : machines) {
    // One that is away may come back, and has its ranks meanwhile.
    const Presence now = hooks_.node(machine.node);
    if (now != Presence::here && now != Presence::away) continue;
    try {
      // What a person has drained stays so.
      if (!hooks_.is_drained(machine.node)) {
        hooks_.drain(machine.node, false);
        drained_.insert(machine.node);
      }
    } catch (const Error& error) {
      log::info("a node is not drained", {{"node", machine.node.str()}, {"why", error.what()}});
    }
    idle = idle && !busy.contains(machine.node);
  }
  return idle;
}

NodeId MachineKeeper::free_name(const std::string& type) {
  // What `up` makes is called node-N.
  const std::string name = type == "node" ? "node-joined" : type;
  for (int& number = next_name_.try_emplace(type, 1).first->second;;) {
    NodeId node(name + "-" + std::to_string(number++));
    if (!hooks_.is_taken(node) && !machines_.contains(node)) return node;
  }
}

void MachineKeeper::ask_for(const std::string& type, int count,
                            const std::shared_ptr<Asking>& asking) {
  count -= start_stopped(type, count, asking);
  if (count == 0) return;
  Request request;
  request.type = type;
  request.cluster = cluster_;
  if (const auto* wanted = type_of(type)) request.launch = wanted->launch;
  for (int i = 0; i < count; ++i) {
    const NodeId& node = request.nodes.emplace_back(free_name(type));
    forget(node);  // another of this name, which never came
  }
  const auto scripts = std::make_shared<std::map<NodeId, std::string>>();
  request.boot = [scripts](const NodeId& node) { return kContained + scripts->at(node); };
  const std::vector<NodeId> nodes = request.nodes;
  asking->requests.push_back(std::move(request));
  asking->open += nodes.size();
  for (const NodeId& node : nodes) {
    const auto issued = [this, type, node, scripts, asking, guard = std::weak_ptr<int>(alive_)](
                            const std::string& script, const std::optional<Error>& failed) {
      if (!guard.lock()) return;
      if (failed) {
        fail(type, *failed);
      } else {
        scripts->emplace(node, script);
      }
      if (--asking->open == 0) act(asking);
    };
    try {
      hooks_.issue(node, type, wanted_.addresses, issued);
    } catch (const Error& error) {
      issued("", error);
    }
  }
}

void MachineKeeper::act(const std::shared_ptr<Asking>& asking) {
  // Of a request whose credentials are not all there none is used; nothing is asked for that may
  // be wanted no more.
  const bool over = ended_ || going_ || next_ || asking->source != source_;
  std::erase_if(asking->requests, [&](const Request& request) {
    const bool failed =
        over || !failures_.may_ask(request.type, static_cast<int>(request.nodes.size()));
    if (failed) {
      for (const NodeId& node : request.nodes) remove(node, "it was not asked for");
    }
    return failed;
  });
  drop_unissued(*asking, over);
  const bool is_empty = asking->requests.empty() && asking->release.empty() &&
                        asking->stop.empty() && asking->start.empty();
  if (over || is_empty) return settle();
  using Outcomes = std::vector<MachineOutcome>;
  const auto outcomes = std::make_shared<Outcomes>();
  const auto released = std::make_shared<Outcomes>();
  const auto stopped = std::make_shared<Outcomes>();
  const auto started = std::make_shared<Outcomes>();
  ask(
      asking->source,
      [source = asking->source, asking, outcomes, released, stopped, started] {
        const auto into = [](const std::shared_ptr<Outcomes>& all) {
          return [all](const MachineOutcome& each) { all->push_back(each); };
        };
        if (!asking->stop.empty()) source->stop(asking->stop, into(stopped));
        if (!asking->release.empty()) source->release(asking->release, into(released));
        if (!asking->start.empty()) {
          source->start(
              asking->start,
              [&](const NodeId& node) { return kContained + asking->scripts.at(node); },
              into(started));
        }
        if (!asking->requests.empty()) {
          source->create(asking->requests,
                         [&](const MachineOutcome& each) { outcomes->push_back(each); });
        }
      },
      [this, asking, outcomes, released, stopped, started](const std::optional<Error>& failed) {
        for (const MachineOutcome& each : *stopped) turned(each, "stopped");
        for (const MachineOutcome& each : *started) turned(each, "started");
        // What failed says nothing of what is wanted since.
        const bool counts = asking->source == source_;
        if (failed && counts) {
          for (const Request& request : asking->requests) fail(request.type, *failed);
        }
        bool moved = !outcomes->empty() || !stopped->empty() || !started->empty();
        std::map<NodeId, int> together;
        for (const Request& request : asking->requests) {
          for (const NodeId& node : request.nodes) {
            together.emplace(node, static_cast<int>(request.nodes.size()));
          }
        }
        for (const MachineOutcome& each : *outcomes) {
          const Machine& machine = each.machine;
          if (each.error) {
            remove(machine.node, "its machine cannot be had");
            if (counts) fail(machine.type, *each.error, together[machine.node]);
            continue;
          }
          log::info("a machine was asked for", {{"node", machine.node.str()}, {"id", machine.id}});
          machines_.insert_or_assign(machine.node, machine);
          note_asked(machine);
        }
        for (const MachineOutcome& each : *released) {
          moved = moved || !each.error;
          if (!each.error) continue;
          kept_[each.machine.node] = "cannot be given back: " + each.error->message();
          log::warn("a machine cannot be given back",
                    {{"node", each.machine.node.str()}, {"why", each.error->what()}});
        }
        if (moved) pause_ = kFirstLook;
        settle();
      });
}

}  // namespace dtrain::head

#include <utility>

#include "agent/head/machines/keeper.hpp"
#include "launcher/core/log.hpp"

// The cluster's end by its own head: all other machines first, whoever has made them, and when they
// are gone its own.
namespace dtrain::head {

void MachineKeeper::go_down(const std::string& why, bool terminate) {
  going_ = Going{why, terminate};
  pause_ = kFirstLook;
  look();
}

void MachineKeeper::stay() {
  going_.reset();
  kept_.clear();
}

void MachineKeeper::leave(const std::vector<Machine>& list) {
  const Going going = *going_;
  moves_ = true;
  idle_left_.reset();
  see(list, true);  // what is gone costs no more
  std::vector<Machine> others;
  std::optional<Machine> own;
  machines_.clear();
  bool are_there = false;
  for (const Machine& machine : list) {
    if (machine.cluster != cluster_ || machine.state == MachineState::gone) continue;
    if (machine.head) {
      own = machine;
      continue;
    }
    are_there = true;
    machines_.insert_or_assign(machine.node, machine);
    if (machine.state == MachineState::stopping) continue;
    others.push_back(machine);
    const Engine::Presence now = hooks_.node(machine.node);
    if (now == Engine::Presence::lost) continue;
    log::info("a machine is given back", {{"node", machine.node.str()}, {"why", going.why}});
    remove(machine.node, "the cluster goes down: " + going.why);
  }
  if (!are_there && own && own->state == MachineState::running) {
    log::info(
        going.terminate ? "the head's machine is given back" : "the head's machine is stopped",
        {{"id", own->id}, {"why", going.why}});
    others.push_back(*own);
  }
  if (others.empty()) return settle();
  const bool stops = !are_there && !going.terminate;
  const auto outcomes = std::make_shared<std::vector<MachineOutcome>>();
  ask(
      source_,
      [source = source_, others, stops, outcomes] {
        const auto hear = [&](const MachineOutcome& each) { outcomes->push_back(each); };
        stops ? source->stop(others, hear) : source->release(others, hear);
      },
      [this, outcomes](const std::optional<Error>& failed) {
        if (!going_) return settle();  // meanwhile it is to stay
        if (failed) trouble_ = failed;
        for (const MachineOutcome& each : *outcomes) {
          if (!each.error) continue;
          if (each.machine.head) trouble_ = each.error;
          kept_[each.machine.node] = "cannot be given back: " + each.error->message();
          log::warn("a machine stays",
                    {{"node", each.machine.node.str()}, {"why", each.error->what()}});
        }
        settle();
      });
}

}  // namespace dtrain::head

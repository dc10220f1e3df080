#include <algorithm>
#include <chrono>

#include "agent/head/machines/keeper.hpp"

// What the queue hears of machines that there may be and are to come, and what it needs of them.
namespace dtrain::head {

using Presence = Engine::Presence;

void MachineKeeper::needs() {
  if (tells_ || ended_ || !source_) return;
  if (at_work_) {
    others_ = true;
    return;
  }
  const Growth growth = tell();
  std::map<std::string, int> there;
  bool in_vain = false;
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows() || machine.state == MachineState::stopped) continue;
    const bool comes = machine.joins && hooks_.node(node) == Presence::unseen;
    const bool is_beyond = ++there[machine.type] > type->count;
    in_vain = in_vain || (comes && is_beyond && !growth.needed.contains(node));
  }
  if (in_vain || growth.short_of_room || !growth.gangs.empty()) return look();
  gangs_.clear();
  in_use(growth);
  if (idle_left_) arm(std::chrono::ceil<std::chrono::milliseconds>(*idle_left_));
}

// What those that are here have, and whether they are of use: another would not be either. Of types
// of which more may be asked for.
void MachineKeeper::measure() {
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows() || !is_here(node)) continue;
    if (const auto has = hooks_.capacity(node)) {
      NodeCapacity& least =
          measured_.try_emplace({machine.type, machine.launch}, *has).first->second;
      least.cpus = std::min(least.cpus, has->cpus);
      least.gpus = std::min(least.gpus, has->gpus);
      least.memory = std::min(least.memory, has->memory);
      least.glibc = std::min(least.glibc, has->glibc);
    }
    const std::string why = hooks_.broken(node);
    if (why.empty()) {
      broken_.erase(node);
    } else if (broken_.insert(node).second) {
      fail(machine.type, Error(ErrorCode::failed, node.str() + " " + why));
    }
  }
}

MachinesToCome MachineKeeper::to_come() const {
  MachinesToCome result;
  for (const auto& [type, count] : missing()) result.nodes += count;
  const bool grows = std::any_of(wanted_.types.begin(), wanted_.types.end(),
                                 [](const auto& type) { return type.grows(); });
  if (!grows) return result;
  std::map<std::string, int> there;
  for (const auto& [node, machine] : machines_) {
    const Presence now = hooks_.node(node);
    const bool counts = now != Presence::lost && !hooks_.leaves(node) && !hopeless_.contains(node);
    if (!is_live(machine.state) || !counts) continue;
    ++there[machine.type];
    if (now != Presence::unseen) continue;
    const bool runs = machine.state == MachineState::running;
    result.coming.push_back(
        {node, machine.type, runs, runs ? "it joins" : machine.reason, group_of(machine)});
  }
  int least = 0;
  for (const wire::WantedMachines::Type& wanted : wanted_.types) {
    MachineType& type = result.types.emplace_back();
    type.name = wanted.name;
    type.there = there[wanted.name];
    type.least = wanted.count;
    type.most = wanted.most();
    type.priority = wanted.priority;
    const auto* failure = failures_.find(wanted.name);
    if (failure != nullptr && failure->again > clock_.now()) {
      type.trouble = failure->why.message();
      type.refused = failure->count;
    }
    least += wanted.count;
    if (const auto found = measured_.find({wanted.name, wanted.launch}); found != measured_.end()) {
      type.each = found->second;
      type.known = true;
    } else {
      type.each = any_machine();
      type.known = wanted.cpus && wanted.gpus;
      if (type.known) {
        type.each.cpus = *wanted.cpus;
        type.each.gpus = *wanted.gpus;
        type.each.memory = wanted.memory.value_or(type.each.memory);
      }
    }
  }
  result.most = std::max(least, wanted_.max_workers);
  return result;
}

Growth MachineKeeper::tell() {
  tells_ = true;
  Growth growth = hooks_.expect_machines(to_come());
  tells_ = false;
  return growth;
}

// What jobs run on or wait for, and what has not been idle for long: of types of which there may be
// more than are to stand ready.
std::set<NodeId> MachineKeeper::in_use(const Growth& growth) {
  std::set<NodeId> used;
  idle_left_.reset();
  const std::set<NodeId> with_ranks = hooks_.with_ranks();
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows() || !machine.joins) {
      idle_.erase(node);
      continue;
    }
    if (with_ranks.contains(node) || growth.needed.contains(node)) {
      idle_.erase(node);
      used.insert(node);
      continue;
    }
    const Presence now = hooks_.node(node);
    if (now != Presence::here && now != Presence::away) continue;  // nobody waits for it any more
    const auto since = idle_.try_emplace(node, clock_.now()).first->second;
    const auto left = since + type->idle_timeout - clock_.now();
    if (left <= Monotonic::duration::zero() || growth.short_of_room) continue;
    used.insert(node);
    idle_left_ = std::min(left, idle_left_.value_or(left));
  }
  return used;
}

}  // namespace dtrain::head

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

CostLimit MachineKeeper::cost_limit() const {
  std::vector<std::string> others;  // asked for, and not listed yet
  for (const auto& [node, machine] : machines_) {
    if (is_live(machine.state) && !account_.has(machine.id)) others.push_back(machine.type);
  }
  std::map<std::string, int> to_stand_ready;
  for (const wire::WantedMachines::Type& type : wanted_.types) {
    to_stand_ready[type.name] = type.count;
  }
  return account_.limit(others, to_stand_ready);
}

MachinesToCome MachineKeeper::to_come() const {
  MachinesToCome result;
  for (const auto& [type, count] : missing()) result.nodes += count;
  const bool grows = std::any_of(wanted_.types.begin(), wanted_.types.end(),
                                 [](const auto& type) { return type.grows(); });
  if (!grows) return result;
  result.in_allocations = wanted_.scaler.empty();  // Slurm
  std::map<std::string, int> there;
  std::map<std::string, int> coming;
  for (const auto& [node, machine] : machines_) {
    const Presence now = hooks_.node(node);
    const bool counts = now != Presence::lost && !hooks_.leaves(node) && !hopeless_.contains(node);
    if (!is_live(machine.state) || !counts) continue;
    ++there[machine.type];
    if (now != Presence::unseen) continue;
    coming[machine.type] += machine.joins ? 1 : 0;
    const bool runs = machine.state == MachineState::running;
    const auto asked = asked_.find(node);
    result.coming.push_back({node, machine.type, runs, runs ? "it joins" : machine.reason,
                             group_of(machine), !machine.joins, machine.instance_type, machine.zone,
                             asked == asked_.end() ? "" : time_of_day(asked->second)});
  }
  int least = 0;
  for (const wire::WantedMachines::Type& wanted : wanted_.types) {
    MachineType& type = result.types.emplace_back();
    type.name = wanted.name;
    type.there = there[wanted.name];
    type.least = wanted.count;
    type.most = wanted.most();
    type.priority = wanted.priority;
    type.price = account_.most_of(wanted.name);
    const auto* failure = failures_.find(wanted.name);
    type.failed = failure != nullptr;
    if (wanted_.upscaling_speed) {
      const double at_once = *wanted_.upscaling_speed * (type.there - coming[wanted.name]);
      type.at_once = static_cast<int>(std::clamp<double>(
          at_once, wire::WantedMachines::kLeastAtOnce, wire::WantedMachines::kMost));
    }
    if (type.failed && failure->again > clock_.now()) {
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
  result.cost = cost_limit();
  return result;
}

Growth MachineKeeper::tell() {
  tells_ = true;
  Growth growth = hooks_.expect_machines(to_come());
  tells_ = false;
  return growth;
}

// What jobs run on or wait for, and what has not been idle for long: of types of which there may be
// more than are to stand ready. What waits for machines that cannot be had is as idle as others.
std::set<NodeId> MachineKeeper::in_use(const Growth& growth) {
  std::set<NodeId> used;
  idle_left_.reset();
  const std::map<NodeId, std::string> busy = hooks_.busy();
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows() || !machine.joins) {
      idle_.erase(node);
      continue;
    }
    const bool is_busy = busy.contains(node);
    const bool waits_in_vain = growth.half.contains(node);
    if (is_busy || growth.needed.contains(node)) used.insert(node);
    if (is_busy || (used.contains(node) && !waits_in_vain)) {
      idle_.erase(node);
      continue;
    }
    const Presence now = hooks_.node(node);
    if (now != Presence::here && now != Presence::away) continue;  // nobody waits for it any more
    const auto since = idle_.try_emplace(node, clock_.now()).first->second;
    const auto left = since + type->idle_timeout - clock_.now();
    const bool goes_now = growth.short_of_room && !waits_in_vain;
    if (left <= Monotonic::duration::zero() || goes_now) continue;
    used.insert(node);
    idle_left_ = std::min(left, idle_left_.value_or(left));
  }
  return used;
}

}  // namespace dtrain::head

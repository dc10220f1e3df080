#include "agent/head/machines/decision.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

using Group = std::vector<Machine>;

bool goes_first(const Group& a, const Group& b) {
  const auto rank = [](const Group& group) {
    const Machine& first = group.front();
    return std::tuple(first.state == MachineState::pending, first.created, first.id.size(),
                      first.id);
  };
  return rank(a) > rank(b);
}

}  // namespace

std::string group_of(const Machine& machine) {
  return machine.id.substr(0, machine.id.find('/'));
}

MachineDecision decide_machines(const wire::WantedMachines& wanted,
                                const std::vector<Machine>& there) {
  std::map<std::string, std::map<std::string, Group>> groups;  // by type and group
  for (const Machine& machine : there) groups[machine.type][group_of(machine)].push_back(machine);
  MachineDecision decision;
  for (const wire::WantedMachines::Type& type : wanted.types) {
    const auto wanted_count = static_cast<std::size_t>(type.count);
    std::size_t count = 0;
    std::vector<Group> counted;
    for (auto& [id, group] : groups[type.name]) {
      if (wanted.replace && group.front().launch != type.launch) {
        decision.release.push_back({std::move(group), "made by another launch configuration"});
      } else {
        count += group.size();
        counted.push_back(std::move(group));
      }
    }
    groups.erase(type.name);
    if (count < wanted_count) decision.create[type.name] = static_cast<int>(wanted_count - count);
    std::sort(counted.begin(), counted.end(), goes_first);
    for (Group& group : counted) {
      if (count < wanted_count + group.size()) continue;
      count -= group.size();
      decision.release.push_back(
          {std::move(group), std::to_string(wanted_count) + " of type " + type.name +
                                 (wanted_count == 1 ? " is" : " are") + " wanted"});
    }
  }
  for (auto& [type, of_type] : groups) {
    for (auto& [id, group] : of_type) {
      decision.release.push_back(
          {std::move(group), "none of type " + printable(type, false) + " is wanted"});
    }
  }
  return decision;
}

}  // namespace dtrain::head

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

std::map<std::string, std::string> stay_below(
    MachineDecision& decision, const wire::WantedMachines& wanted, const CostLimit& limit,
    const std::function<std::optional<double>(const std::string& type)>& price) {
  std::map<std::string, std::string> why;
  double cost = limit.now;
  for (const wire::WantedMachines::Type& type : wanted.types) {
    const auto found = decision.create.find(type.name);
    if (found == decision.create.end()) continue;
    const auto each = price(type.name);
    int count = found->second;
    while (!too_dear(limit, count, each, cost).empty()) --count;
    cost += count * each.value_or(0);
    const int less = std::exchange(found->second, count) - count;
    if (less > 0) {
      why[type.name] = std::to_string(less) + (less == 1 ? " is" : " are") +
                       " missing: " + too_dear(limit, less, each, cost);
    }
    if (count == 0) decision.create.erase(found);
  }
  return why;
}

std::string group_of(const Machine& machine) {
  if (machine.id.empty()) return machine.node.str();  // nobody knows it yet
  return machine.id.substr(0, machine.id.find('/'));
}

MachineDecision decide_machines(const wire::WantedMachines& wanted,
                                const std::vector<Machine>& there, const std::set<NodeId>& in_use) {
  std::map<std::string, std::map<std::string, Group>> groups;  // by type and group
  std::map<std::string, std::size_t> standing;                 // by type
  for (const Machine& machine : there) {
    if (machine.joins) {
      groups[machine.type][group_of(machine)].push_back(machine);
    } else {
      ++standing[machine.type];
    }
  }
  MachineDecision decision;
  for (const wire::WantedMachines::Type& type : wanted.types) {
    const auto wanted_count = static_cast<std::size_t>(type.count);
    const auto most = static_cast<std::size_t>(type.most());
    std::size_t count = standing[type.name];
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
    const auto is_used = [&](const Group& group) {
      return std::any_of(group.begin(), group.end(),
                         [&](const Machine& machine) { return in_use.contains(machine.node); });
    };
    std::sort(counted.begin(), counted.end(), goes_first);
    std::stable_partition(counted.begin(), counted.end(),
                          [&](const Group& group) { return !is_used(group); });
    for (Group& group : counted) {
      if (count < wanted_count + group.size()) continue;
      if (count <= most && is_used(group)) continue;
      // Beyond the count there are those that jobs were waiting for.
      const std::string why = most > wanted_count && count <= most
                                  ? "no job needs it"
                                  : std::to_string(wanted_count) + " of type " + type.name +
                                        (wanted_count == 1 ? " is" : " are") + " wanted";
      count -= group.size();
      decision.release.push_back({std::move(group), why});
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

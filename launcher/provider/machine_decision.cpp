#include "launcher/provider/machine_decision.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

using Group = std::vector<Machine>;

bool is_newer(const Machine& a, const Machine& b) {
  return std::tuple(a.created, a.id.size(), a.id) > std::tuple(b.created, b.id.size(), b.id);
}

// Of a group that no job needs: it can be used again as it is.
bool may_be_stopped(const wire::WantedMachines& wanted, const wire::WantedMachines::Type& type,
                    const Group& group) {
  return wanted.cache_stopped_nodes &&
         std::all_of(group.begin(), group.end(), [&](const Machine& machine) {
           return !machine.spot && machine.launch == type.launch &&
                  machine.state == MachineState::running;
         });
}

bool goes_first(const Group& a, const Group& b) {
  const auto rank = [](const Group& group) {
    const Machine& first = group.front();
    return std::tuple(first.state == MachineState::pending, first.price, first.created,
                      first.id.size(), first.id);
  };
  return rank(a) > rank(b);
}

}  // namespace

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
      const bool is_idle = most > wanted_count && count <= most;
      const std::string why = is_idle ? "no job needs it"
                                      : std::to_string(wanted_count) + " of type " + type.name +
                                            (wanted_count == 1 ? " is" : " are") + " wanted";
      count -= group.size();
      const bool stop = is_idle && may_be_stopped(wanted, type, group);
      decision.release.push_back({std::move(group), why, stop});
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

std::vector<Machine> to_start(const std::vector<Machine>& stopped,
                              const wire::WantedMachines::Type& type, int count) {
  std::vector<Machine> fitting;
  for (const Machine& machine : stopped) {
    const bool fits = machine.type == type.name && machine.launch == type.launch;
    if (fits && machine.can_start()) fitting.push_back(machine);
  }
  std::sort(fitting.begin(), fitting.end(), is_newer);
  fitting.resize(std::min(fitting.size(), static_cast<std::size_t>(std::max(count, 0))));
  return fitting;
}

std::vector<MachineDecision::Release> surplus_stopped(const wire::WantedMachines& wanted,
                                                      std::map<std::string, int> others,
                                                      std::vector<Machine> stopped) {
  std::vector<MachineDecision::Release> surplus;
  int left = wanted.max_workers;
  for (const auto& [type, count] : others) left -= count;
  const auto type_of = [&](const Machine& machine) {
    return std::find_if(wanted.types.begin(), wanted.types.end(),
                        [&](const auto& each) { return each.name == machine.type; });
  };
  std::sort(stopped.begin(), stopped.end(), is_newer);
  // What jobs could have goes last.
  std::stable_partition(stopped.begin(), stopped.end(), [&](const Machine& machine) {
    const auto type = type_of(machine);
    return type != wanted.types.end() && type->launch == machine.launch;
  });
  for (Machine& machine : stopped) {
    const auto type = type_of(machine);
    std::string why;
    if (type == wanted.types.end()) {
      why = "none of type " + printable(machine.type, false) + " is wanted";
    } else if (!wanted.cache_stopped_nodes) {
      why = "it is stopped, and such are not kept";
    } else if (wanted.replace && machine.launch != type->launch) {
      why = "made by another launch configuration";
    } else if (left <= 0 || others[machine.type] >= type->most()) {
      why = "it is stopped, and there may be no more machines";
    } else {
      --left;
      ++others[machine.type];
      continue;
    }
    surplus.push_back({{std::move(machine)}, std::move(why)});
  }
  return surplus;
}

}  // namespace dtrain

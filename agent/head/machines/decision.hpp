#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/head/engine/cost_limit.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain::head {

struct MachineDecision {
  struct Release {
    std::vector<Machine> machines;  // that were had together
    std::string reason;
  };
  std::map<std::string, int> create;  // by type
  std::vector<Release> release;
};

// Pure. `there`: of this cluster, pending or running; what an `up` has made counts, and stays. What
// was had together goes together or not at all: of too many the pending ones go first, then the
// newest. What has one of `in_use` goes only where there are more than there may be. With `replace`
// those of another launch configuration count for nothing, and go.
MachineDecision decide_machines(const wire::WantedMachines& wanted,
                                const std::vector<Machine>& there,
                                const std::set<NodeId>& in_use = {});

// Takes from decision.create what may not be asked for because of what it costs, of the types in
// the order in which they are wanted; why, by type. Pure.
std::map<std::string, std::string> stay_below(
    MachineDecision& decision, const wire::WantedMachines& wanted, const CostLimit& limit,
    const std::function<std::optional<double>(const std::string& type)>& price);

// Equal for machines that were had together.
std::string group_of(const Machine& machine);

}  // namespace dtrain::head

#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/provider/machine.hpp"
#include "launcher/wire/machines.hpp"

namespace dtrain {

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

// Equal for machines that were had together.
std::string group_of(const Machine& machine);

}  // namespace dtrain

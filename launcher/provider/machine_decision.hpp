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
    bool stop = false;  // they are kept, stopped, for later jobs
  };
  std::map<std::string, int> create;  // by type
  std::vector<Release> release;
};

// Pure. `there`: of this cluster, pending or running; what an `up` has made counts, and stays. What
// was had together goes together or not at all: of too many the pending ones go first, then the
// dearest, then the newest. What has one of `in_use` goes only where there are more than there may
// be. With `replace` those of another launch configuration count for nothing, and go.
MachineDecision decide_machines(const wire::WantedMachines& wanted,
                                const std::vector<Machine>& there,
                                const std::set<NodeId>& in_use = {});

// Pure. Of `stopped` those that a request for `count` of a type starts in place of new ones: made
// by the launch configuration that is wanted, the newest first.
std::vector<Machine> to_start(const std::vector<Machine>& stopped,
                              const wire::WantedMachines::Type& type, int count);

// Pure. Of `stopped` those that go: what there may be of each type, and of all, is counted with
// `others` by type, which run, come, or are to be stopped; the newest stay.
std::vector<MachineDecision::Release> surplus_stopped(const wire::WantedMachines& wanted,
                                                      std::map<std::string, int> others,
                                                      std::vector<Machine> stopped);

// Equal for machines that were had together.
std::string group_of(const Machine& machine);

}  // namespace dtrain

#include "launcher/provider/machine_decision.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/asked_machines.hpp"

using namespace dtrain;
using namespace dtrain::testing;
using Strings = std::vector<std::string>;

namespace {

// "3: 2 of type gpu are wanted", each by its group.
Strings released(const MachineDecision& decision) {
  Strings rows;
  for (const auto& each : decision.release) {
    rows.push_back(group_of(each.machines.front()) + ": " + each.reason);
  }
  return rows;
}

}  // namespace

TEST_CASE("machines: what is asked for and given back") {
  CHECK(decide_machines(wanted(2), {}).create == std::map<std::string, int>{{"gpu", 2}});
  const std::vector<Machine> three{made("gpu-1", "1/0"), made("gpu-2", "1/1"),
                                   made("gpu-3", "2/0")};
  CHECK(decide_machines(wanted(4), three).create == std::map<std::string, int>{{"gpu", 1}});
  const MachineDecision same = decide_machines(wanted(3), three);
  CHECK(same.create.empty());
  CHECK(same.release.empty());
  // The newest that fits; a part of what was had together never.
  CHECK(released(decide_machines(wanted(2), three)) == Strings{"2: 2 of type gpu are wanted"});
  CHECK(released(decide_machines(wanted(1), three)) == Strings{"2: 1 of type gpu is wanted"});
  CHECK(released(decide_machines(wanted(0), three)).size() == 2);
  // What only waits goes before what runs.
  std::vector<Machine> waits = three;
  waits.push_back(made("gpu-4", "0/0", "gpu", MachineState::pending));
  CHECK(released(decide_machines(wanted(3), waits)) == Strings{"0: 3 of type gpu are wanted"});
  // The dearest before the newest.
  std::vector<Machine> priced = three;
  priced[0].price = priced[1].price = 12;
  priced[2].price = 3;
  CHECK(released(decide_machines(wanted(1), priced)) == Strings{"1: 1 of type gpu is wanted"});
  CHECK(released(decide_machines(wanted(3), {made("old-1", "1/0", "old")})) ==
        Strings{"1: none of type old is wanted"});
  // Beyond the count what is used stays, as long as there may be so many.
  wire::WantedMachines grown = on_demand(2);
  const std::set<NodeId> used{NodeId("gpu-1"), NodeId("gpu-3")};
  CHECK(released(decide_machines(grown, three, used)) == Strings{"2: 0 of type gpu are wanted"});
  grown.types.front().max_workers = 3;
  CHECK(released(decide_machines(grown, three, used)).empty());
  CHECK(released(decide_machines(grown, three, {NodeId("gpu-2")})) ==
        Strings{"2: no job needs it"});
  // What an `up` has made counts, and stays, whatever it is.
  std::vector<Machine> mixed = three;
  for (Machine& machine : mixed) machine.joins = machine.node == NodeId("gpu-3");
  CHECK(decide_machines(wanted(4), mixed).create == std::map<std::string, int>{{"gpu", 1}});
  CHECK(released(decide_machines(wanted(1), mixed)) == Strings{"2: 1 of type gpu is wanted"});
  mixed.front().type = "old";
  CHECK(released(decide_machines(wanted(2), mixed)).empty());
  // Another launch configuration stays, unless it is to be replaced.
  wire::WantedMachines other = wanted(3, "two");
  CHECK(decide_machines(other, three).create.empty());
  other.replace = true;
  const MachineDecision replaced = decide_machines(other, three);
  CHECK(replaced.create == std::map<std::string, int>{{"gpu", 3}});
  CHECK(released(replaced) == Strings{"1: made by another launch configuration",
                                      "2: made by another launch configuration"});
}

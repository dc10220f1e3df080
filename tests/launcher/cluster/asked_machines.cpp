#include "launcher/cluster/asked_machines.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace dtrain;
using Lines = std::vector<std::string>;

namespace {

wire::WantedMachines wanted(int count, int most, bool replace = false) {
  wire::WantedMachines wanted;
  wanted.provider = "slurm";
  wanted.replace = replace;
  wanted.types.push_back({"gpu", count, "new", {}});
  wanted.types.front().max_workers = most;
  return wanted;
}

Machine asked(const std::string& node, const std::string& id, const std::string& launch = "new",
              MachineState state = MachineState::running, const std::string& reason = "") {
  Machine machine;
  machine.joins = true;
  machine.node = NodeId(node);
  machine.id = id;
  machine.type = "gpu";
  machine.launch = launch;
  machine.state = state;
  machine.reason = reason;
  return machine;
}

Lines lines(const wire::WantedMachines& what, const std::vector<Machine>& there) {
  Lines lines;
  for (const NodePlan& each : plan_asked(what, there)) {
    const std::string name = each.machine.node.empty() ? "(new)" : each.machine.node.str();
    lines.push_back(std::string(to_string(each.action)) + " " + name + ": " + each.reason);
  }
  return lines;
}

}  // namespace

TEST_CASE("asked machines: what the head would do is shown as it decides it") {
  CHECK(lines(wanted(0, 4), {}).empty());
  CHECK(lines(wanted(2, 2), {asked("gpu-1", "7/0")}) ==
        Lines{"keep gpu-1: is there", "create (new): there is none yet"});
  CHECK(lines(wanted(1, 1), {asked("gpu-1", "7/0", "new", MachineState::pending,
                                   "waits in partition gpu: Priority")}) ==
        Lines{"keep gpu-1: on its way: waits in partition gpu: Priority"});
  // What is stopping is not there, and what jobs may need stays.
  CHECK(lines(wanted(1, 1), {asked("gpu-1", "7/0", "new", MachineState::stopping)}) ==
        Lines{"create (new): there is none yet"});
  CHECK(lines(wanted(0, 1), {asked("gpu-1", "7/0")}) == Lines{"keep gpu-1: is there"});
  CHECK(lines(wanted(1, 1), {asked("gpu-1", "7/0"), asked("gpu-2", "8/0")}) ==
        Lines{"keep gpu-1: is there", "release gpu-2: 1 of type gpu is wanted"});
  // What an `up` has made counts, and is not the head's.
  Machine standing = asked("node-1", "i-1");
  standing.joins = false;
  CHECK(lines(wanted(1, 1), {standing}).empty());
  CHECK(lines(wanted(1, 1), {standing, asked("gpu-1", "7/0")}) ==
        Lines{"release gpu-1: 1 of type gpu is wanted"});
}

TEST_CASE("asked machines: those of another launch configuration stay, unless they are replaced") {
  const std::vector<Machine> there{asked("gpu-1", "7/0", "old"), asked("gpu-2", "7/1", "old")};
  const auto kept = plan_asked(wanted(2, 2), there);
  CHECK(lines(wanted(2, 2), there) ==
        Lines{"keep gpu-1: made by another launch configuration; up --replace makes it anew",
              "keep gpu-2: made by another launch configuration; up --replace makes it anew"});
  CHECK(kept.front().stale);
  CHECK(lines(wanted(2, 2, true), there) ==
        Lines{"replace gpu-1: made by another launch configuration",
              "replace gpu-2: made by another launch configuration"});
  // Fewer, or more, than there were.
  CHECK(lines(wanted(1, 1, true), there) ==
        Lines{"replace gpu-1: made by another launch configuration",
              "release gpu-2: made by another launch configuration"});
  CHECK(lines(wanted(3, 3, true), there) ==
        Lines{"replace gpu-1: made by another launch configuration",
              "replace gpu-2: made by another launch configuration",
              "create (new): there is none yet"});
}

TEST_CASE("asked machines: those that are stopped, and which of them go") {
  const std::vector<Machine> there{asked("gpu-1", "1", "new", MachineState::stopped),
                                   asked("gpu-2", "2"),
                                   asked("gpu-3", "3", "old", MachineState::stopped)};
  wire::WantedMachines what = wanted(0, 2);
  what.cache_stopped_nodes = true;
  CHECK(lines(what, there) ==
        Lines{"keep gpu-2: is there", "keep gpu-1: is stopped",
              "release gpu-3: it is stopped, and there may be no more machines"});
  what.cache_stopped_nodes = false;
  CHECK(lines(what, there) == Lines{"keep gpu-2: is there",
                                    "release gpu-1: it is stopped, and such are not kept",
                                    "release gpu-3: it is stopped, and such are not kept"});
}

TEST_CASE("asked machines: who waits for long looks seldom, and hears of them soon all the same") {
  using namespace std::chrono_literals;
  std::chrono::milliseconds waited{0};
  std::chrono::milliseconds pause{0};
  int looks = 0;
  while (waited < 24h) {
    pause = next_glance(pause);
    CHECK(pause <= 50ms + waited / 10);
    waited += pause;
    ++looks;
  }
  CHECK(pause == 15s);
  CHECK(looks < 6000);  // a day's; Slurm's MaxStepCount is 40,000
}

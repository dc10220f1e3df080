#pragma once

#include <chrono>
#include <string>

#include "launcher/provider/machine.hpp"
#include "launcher/wire/machines.hpp"

// Machines of type gpu that a head asks for, and what it is told to ask for.
namespace dtrain::testing {

inline wire::WantedMachines wanted(int count, const std::string& launch = "one") {
  wire::WantedMachines wanted;
  wanted.provider = "fake";
  wanted.boot = "/boot";
  wanted.types = {{"gpu", count, launch, {}}};
  return wanted;
}

// None stand ready; so many there may be.
inline wire::WantedMachines on_demand(int most) {
  wire::WantedMachines what = wanted(0);
  what.types.front().max_workers = most;
  what.types.front().idle_timeout = std::chrono::seconds(60);
  return what;
}

inline Machine made(const std::string& node, const std::string& id, const std::string& type = "gpu",
                    MachineState state = MachineState::running, const std::string& launch = "one") {
  Machine machine;
  machine.joins = true;
  machine.node = NodeId(node);
  machine.id = id;
  machine.type = type;
  machine.state = state;
  machine.launch = launch;
  machine.created = std::chrono::system_clock::time_point(std::chrono::seconds(std::stoi(id)));
  return machine;
}

}  // namespace dtrain::testing

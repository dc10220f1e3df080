#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

enum class MachineState : std::uint8_t {
  pending,   // asked for, and not there yet
  running,   // it can be reached, or soon
  stopping,  // it is being given back: of no use any more
  stopped,   // it costs its disks alone, and can be started again; or is about to be so
  gone,
};
const char* to_string(MachineState state) noexcept;
// Asked for or there, and not going.
constexpr bool is_live(MachineState state) noexcept {
  return state == MachineState::pending || state == MachineState::running;
}

// Of one that is stopped, why it cannot be started at once.
inline constexpr const char* kStopsNow = "it is being stopped";

// How the reason of one begins that is longer on its way than one would think.
inline constexpr const char* kTakesLong = "takes long: ";

// One machine of a cluster, as its provider tells of it; what is empty is not known, or there is no
// such thing.
struct Machine {
  NodeId node;
  std::string address;           // as the other nodes reach it
  fs::path root;                 // the node's root there; the node itself tells it
  std::optional<HostSpec> host;  // how ssh reaches it, where it does

  std::string type;           // one of the YAML's node types
  std::string instance_type;  // what the provider calls it: p3.2xlarge
  bool head = false;
  bool joins = false;  // the head has asked for it, and it joins by itself
  bool spot = false;   // the provider takes it back when it likes; it cannot be stopped
  std::string id;      // the provider's own: i-0abc…, a pod's name
  MachineState state = MachineState::running;
  std::string reason;            // why it is in this state: "Priority, starts about 14:20"
  bool taken_back = false;       // it has ended, or ends, as its provider wants it for others
  bool outdated = false;         // pending, by other than is wanted now: create() asks for it anew
  std::string external_address;  // as this machine reaches it, where that is another
  std::string zone;
  std::optional<double> price;  // US dollars an hour
  ClusterId cluster;            // a host that is listed tells it when it is reached
  std::string launch;           // launch_hash() of what it was made by
  // As the provider says it; of one that was started again, when that was.
  std::chrono::system_clock::time_point created;

  bool can_start() const { return state == MachineState::stopped && reason != kStopsNow; }
};

// What a provider keeps with each machine that it makes, so that whoever asks it, from wherever,
// knows whose and what the machine is. Keys and values fit AWS's tags, Kubernetes' labels and
// Slurm's comments: letters, digits, '-', '_' and '.', at most 63.
using Tags = std::map<std::string, std::string>;
Tags tags_of(const std::string& cluster_name, const Machine& machine);
// Absent when they are not those of a machine of that cluster.
std::optional<Machine> machine_of(const std::string& cluster_name, const Tags& tags);

}  // namespace dtrain

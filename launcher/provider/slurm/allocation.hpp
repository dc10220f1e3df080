#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/ids.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/provider/slurm/client.hpp"

// What a job of Slurm's says of the machines that are its nodes.
namespace dtrain::slurm {

// The comments of all such jobs begin so.
constexpr std::string_view kCommentMark = "dtrain ";

// What is written into the comment, and read out of it.
struct Allocation {
  std::string cluster_name;
  ClusterId cluster;
  std::string type;
  std::string launch;         // launch_hash()
  std::string boot;           // the name of its folder below Machines' own
  std::vector<NodeId> nodes;  // by number
};
std::string comment_of(const Allocation& allocation);
// Absent: it is none of ours.
std::optional<Allocation> allocation_of(std::string_view comment);

// How a job's machines stand, with why in people's words, as of `now`: "waits in partition gpu:
// Priority, starts about 14:20".
struct Standing {
  MachineState state = MachineState::pending;
  std::string reason;
  bool taken_back = false;  // Slurm wanted them for others
};
Standing standing_of(const Job& job, std::chrono::system_clock::time_point now);

}  // namespace dtrain::slurm

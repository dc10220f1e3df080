#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"

// The processes of a cluster on this machine, found without its help.
namespace dtrain {

// Where dtrain-agent is: DTRAIN_AGENT, else beside this program as installed or as built. Throws
// Error(not_found) that names the places it looked at.
fs::path find_agent();

struct FoundProcess {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  std::string what;  // "head", "node", "supervise", "watch", "rank", or "exec"
  std::string root;  // an agent's; empty for a rank
};

// This user's processes that belong to the cluster whose folder is `state`: agents with a path
// below it in their arguments, and what an attempt of its nodes started, known by its environment.
// A pager or editor that shows one of its files is not among them.
std::vector<FoundProcess> cluster_processes(const fs::path& state);

// The watch of the cluster, if the one that watch.pid names lives.
std::optional<FoundProcess> living_watch(const fs::path& state);

// Sends the signal if it is still the same process.
void signal_process(const FoundProcess& process, int signal);
// Waits until it has ended; false after `limit`.
bool wait_gone(const FoundProcess& process, std::chrono::milliseconds limit);

// True when something on this machine accepts connections at 127.0.0.1:port.
bool port_open(int port);

}  // namespace dtrain

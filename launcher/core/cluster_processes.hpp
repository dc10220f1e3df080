#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/paths.hpp"

// The processes of a cluster on this machine, found without its help.
namespace dtrain {

// A setup command carries it, with its node's root as value (agent/session/).
inline constexpr const char* kSetupMark = "DTRAIN_SETUP_ROOT";
// Set by a watch for its children: where it runs.
inline constexpr const char* kWatchRoot = "DTRAIN_WATCH_ROOT";

// Whether a name, or NAME=VALUE, is such a mark: by it what an attempt, a command of `exec` or a
// setup list has left running is found and ended. Agents never carry one, whoever started them:
// they outlive it.
bool is_mark(std::string_view entry);

struct FoundProcess {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  std::string what;     // "head", "node", "supervise", "watch", "setup", "rank", "exec", "command"
  std::string root;     // an agent's; empty for the last three
  std::string attempt;  // a supervisor's or rank's: its attempt's folder
  // Of a contained watch: told to end, it ends all that it keeps, within that time.
  std::optional<std::chrono::milliseconds> contained;
};

// Head or node agent.
bool is_role(const FoundProcess& process);

// This user's processes that belong to what lies below `folder`, be it all of a cluster or one
// node's root: agents with a path below it in their arguments, and what an attempt, its ranks or
// its job's `setup`, or a setup list of its nodes started, known by its environment. A pager or
// editor that shows one of its files is not among them.
std::vector<FoundProcess> cluster_processes(const fs::path& folder);

// The control groups of a node's attempts, as their supervisors wrote them down in this boot: kills
// what is still in them and removes them. For a node whose supervisors are gone; those that ended
// in order have left none.
void clear_cgroups(const paths::NodeRoot& node);

// The watch of that folder, if the one that watch.pid names lives.
std::optional<FoundProcess> living_watch(const fs::path& folder);

// From now on nobody starts that watch again when it dies.
void forget_watch(const paths::WatchRoot& watch);

// Error(conflict) when a contained watch keeps that folder: no other may take its place.
void refuse_contained(const paths::WatchRoot& watch);

// Ends the watch of that folder, also one that has not written its pid, by force if it must. The
// agents that it keeps go on, but for a contained one's.
void end_watch(const paths::WatchRoot& watch);

// SIGTERM to all of them, SIGKILL to those that live on after `limit`.
void end_processes(const std::vector<FoundProcess>& processes, std::chrono::milliseconds limit);

// Whether the process runs what the file `program` holds now: that very file, or the same bytes.
bool runs_program(const FoundProcess& process, const fs::path& program);

// What `program --version` says: "0.1.0". Empty when it says nothing within 10 s.
std::string version_of(const fs::path& program);
// The same of what a process runs, though its file may be gone.
std::string version_of(const FoundProcess& process);
// Of the agents that were last brought to that folder, by its watch.json. Empty: not known.
std::string version_of(const paths::WatchRoot& watch);
// The programs that its watch.json starts; none where there is no such file. Throws Error for one
// that cannot be read.
std::vector<std::string> programs_of(const paths::WatchRoot& watch);

// Sends the signal if it is still the same process.
void signal_process(const FoundProcess& process, int signal);
// Waits until it has ended; false after `limit`.
bool wait_gone(const FoundProcess& process, std::chrono::milliseconds limit);

// True when something on this machine accepts connections at 127.0.0.1:port.
bool port_open(int port);

}  // namespace dtrain

#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/link/findings.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/paths.hpp"

// What `dtrain doctor` looks at on a node's machine alone (agent/link/findings.hpp: what it looks
// at on the head's too). For a thread of its own: it may take seconds. What judges is apart from
// what looks. Linear in what there is.
namespace dtrain::node {

using link::Findings;

// What the agent knows of what runs here.
struct KnownHere {
  std::vector<std::pair<JobId, int>> attempts;  // that are not over
  std::vector<std::pair<JobId, int>> running;   // of which something runs
  std::vector<pid_t> execs;                     // commands under way, each a session of its own
};

// ---- Processes

struct Strays {
  std::vector<FoundProcess> of_attempts;  // supervisors and ranks of attempts that are over
  std::vector<FoundProcess> of_execs;     // what commands left behind when they ended
};
// Of what cluster_processes(root) found before `known` was asked for: what was started since then
// is none of it. Agents and what setup commands started are never strays.
Strays strays(const paths::NodeRoot& root, const std::vector<FoundProcess>& found,
              const KnownHere& known);
// Waits for those that are about to end, `limit` at most, and a second for those of commands.
void leave_out_ending(Strays& strays, std::chrono::milliseconds limit);
// With `fix` those of attempts are killed, each only while it is still that process, until they
// are gone. Those of commands may be meant to be there.
void judge_strays(const Strays& strays, bool fix, Findings& findings);

// ---- Folders of sockets

struct StaleSockets {
  fs::path folder;
  fs::path root;  // that is not there any more
};
// Below `folders` (paths::socket_folders()): those of this user that say whose they are, where that
// root is gone, nothing was made within ten minutes and nobody listens. All others may be in use.
std::vector<StaleSockets> stale_sockets(const fs::path& folders, WallTime now);
void judge_sockets(const fs::path& folders, const std::vector<StaleSockets>& stale, bool fix,
                   Findings& findings);

// ---- Limits

struct Limits {
  rlim_t open_files = RLIM_INFINITY;  // hard ones, all
  rlim_t processes = RLIM_INFINITY;
  rlim_t locked_memory = RLIM_INFINITY;
  bool infiniband = false;
  bool is_root = false;
  std::string ptrace_scope;  // kernel.yama's; empty: the kernel has none
};
Limits look_at_limits();
void judge_limits(const Limits& limits, Findings& findings);

// ---- NVIDIA's driver

struct Driver {
  std::vector<int> gpus;  // by /proc, those that we may open; by their minor number
  bool answered = false;  // nvidia-smi ended within its time
  int exit_code = 0;
  std::string said;
  std::vector<std::string> kernel_log;  // lines of /dev/kmsg; empty: not readable
  std::chrono::seconds up{0};           // since boot
};
// Absent where no driver is loaded. `environment` is the login's.
std::optional<Driver> look_at_driver(const std::vector<std::string>& environment,
                                     const fs::path& proc = "/proc/driver/nvidia",
                                     const fs::path& devices = "/dev");
void judge_driver(const Driver& driver, Findings& findings);
// What a program says on stdout and stderr, and its exit code; absent when it has not ended within
// `limit`, and then it was killed. Reaps nothing: the agent does so, whoever's child it is.
std::optional<std::pair<int, std::string>> ask_program(const std::string& command_line,
                                                       const std::vector<std::string>& environment,
                                                       std::chrono::milliseconds limit);

}  // namespace dtrain::node

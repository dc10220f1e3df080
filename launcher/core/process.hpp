#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/core/unique_fd.hpp"

// Processes: start, signal, reap, and the sweep that leaves none. A small wrapper of fork and exec
// of our own, since ranks must be forked by a chosen thread, with a death signal, and be reaped by
// pid alone; libraries that fork through a helper cannot do that.
namespace dtrain {

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] without a slash is looked up in the PATH of `env`
  std::vector<std::string> env;   // all of it, NAME=VALUE
  std::string workdir;            // empty: the caller's
  int stdin_fd = -1;              // -1: /dev/null; not closed by spawn
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<std::pair<int, int>> inherit;  // our descriptor, its number in the child (>= 3)
  bool new_session = false;                  // setsid
  bool new_group = false;                    // setpgid(0, 0)
  bool controlling_terminal = false;         // with new_session: stdin_fd is its terminal
  std::optional<int> death_signal;  // PR_SET_PDEATHSIG: sent when the thread that spawned ends
  bool raise_limits = false;        // soft limits of nofile and memlock to hard
};

// How a process ended.
struct ProcessExit {
  int code = 0;    // exit code; 0 if signalled
  int signal = 0;  // 0: it exited by itself

  bool ok() const noexcept { return code == 0 && signal == 0; }
  // As a shell shows it: the code, or 128+n.
  int shell_code() const noexcept { return signal != 0 ? 128 + signal : code; }
  std::string str() const;  // "exit code 3", "signal 9 (SIGKILL)"
  bool operator==(const ProcessExit&) const = default;
};

// "SIGKILL"; "signal 70" for one without a name.
std::string signal_name(int signal);

// Starts a process; returns its pid, which the caller must reap. Everything but stdio and `inherit`
// is closed in the child; signal mask and dispositions are the default. Throws Error when the
// program or workdir cannot be found or started, with the path it tried.
pid_t spawn(const SpawnOptions& options);

// Reaps `pid` if it has ended; absent while it runs. Never reaps another.
std::optional<ProcessExit> try_wait(pid_t pid);
ProcessExit wait(pid_t pid);

// Reaps every ended child that is not in `owned`: what a subreaper inherits.
void reap_orphans(const std::vector<pid_t>& owned);

// This process's environment as NAME=VALUE.
std::vector<std::string> current_environment();

struct Captured {
  ProcessExit exit;
  std::string out;
  std::string err;
  bool timed_out = false;  // it was killed at the deadline
};
// Runs a program to its end and collects what it writes (at most 16 MiB each; the rest is dropped).
Captured capture(SpawnOptions options, std::string_view input, std::chrono::milliseconds deadline);

// Identity of a process beyond its pid, which the kernel uses again: field 22 of /proc/PID/stat, in
// clock ticks since boot. Absent when there is no such process.
std::optional<std::uint64_t> start_time(pid_t pid);
// The kernel's random id of this boot.
std::string boot_id();

// Pids of this user's processes whose environment has NAME=VALUE; never this process.
std::vector<pid_t> find_by_environment(const std::string& name, const std::string& value);

// SIGKILLs what find_by_environment finds until nothing is left or the deadline passes; returns
// those that would not die (in state D, say).
std::vector<pid_t> sweep(const std::string& name, const std::string& value,
                         std::chrono::milliseconds deadline);

}  // namespace dtrain

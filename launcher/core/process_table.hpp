#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What /proc tells of processes, whoever started them, and the sweep that leaves none.
namespace dtrain {

// All of them but this one.
std::vector<pid_t> other_pids();

// Of /proc/PID/stat; absent when there is no such process.
struct ProcessStat {
  std::string name;  // the kernel's, of 15 characters at most
  char state = '?';
  pid_t parent = 0;
  std::chrono::milliseconds cpu{0};  // used so far
  long threads = 0;
  std::uint64_t start = 0;  // clock ticks since boot

  // A process whose first thread has ended while others run is shown as Z too.
  bool ended() const { return state == 'X' || (state == 'Z' && threads <= 1); }
};
std::optional<ProcessStat> process_stat(pid_t pid);
// The same of one of its threads alone, by its id.
std::optional<ProcessStat> thread_stat(pid_t pid, pid_t tid);
// Identity of a process beyond its pid, which the kernel uses again: when it started, as above.
// Absent when there is no such process.
std::optional<std::uint64_t> start_time(pid_t pid);
// The kernel's random id of this boot.
std::string boot_id();

// Arguments and environment as /proc has them, each entry ended by NUL; empty of a process that is
// gone, is a thread of the kernel, or is another user's. In the middle of exec(2) the kernel shows
// neither: then the environment is absent, and nobody can tell yet what the process will be.
std::string arguments_of(pid_t pid);
std::optional<std::string> environment_of(pid_t pid);

// Pids of this user's processes whose environment has NAME=VALUE; never this process.
std::vector<pid_t> find_by_environment(const std::string& name, const std::string& value);

// For so long what is in the middle of exec is waited for, to see what it will be.
inline constexpr std::chrono::milliseconds kExecLimit{1000};

// SIGKILLs what find_by_environment finds until nothing is left, nor anything in the middle of exec
// that may turn out to be it, or the deadline passes; returns those that would not die (in state D,
// say).
std::vector<pid_t> sweep(const std::string& name, const std::string& value,
                         std::chrono::milliseconds deadline);

}  // namespace dtrain

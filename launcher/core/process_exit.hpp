#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// How children end, and reaping them: by pid alone, so that nobody takes another's.
namespace dtrain {

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

// Reaps `pid` if it has ended; absent while it runs. Never reaps another.
std::optional<ProcessExit> try_wait(pid_t pid);
ProcessExit wait(pid_t pid);
// The same, for one that ends before the deadline.
std::optional<ProcessExit> wait_until(pid_t pid, std::chrono::steady_clock::time_point deadline);

// Reaps some ended child, whosoever: for a process in which nobody else waits for children. Absent
// when none has ended.
std::optional<std::pair<pid_t, ProcessExit>> try_wait_any();

// Reaps every ended child that is not in `owned`: what a subreaper inherits.
void reap_orphans(const std::vector<pid_t>& owned);

}  // namespace dtrain

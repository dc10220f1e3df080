#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Starting processes. A small wrapper of fork and exec of our own, for every program: ranks must be
// forked by a chosen thread, with a death signal, and be reaped by pid alone. Boost.Process v2 of
// Boost 1.81 (tried) leaves descriptors between 2 and its own pipe open in the child, keeps signals
// that are ignored here ignored there, runs our static destructors in a child whose exec fails, and
// waits by pidfd, which Linux before 5.3 has not.
namespace dtrain {

// This process's environment as NAME=VALUE.
std::vector<std::string> current_environment();
// The same, with where the user's own systemd is met.
std::vector<std::string> manager_environment();

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] without a slash is looked up in the PATH of `env`
  std::vector<std::string> env = current_environment();  // all of it
  std::string workdir;                                   // empty: the caller's
  int stdin_fd = -1;                                     // -1: /dev/null; not closed by spawn
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<std::pair<int, int>> inherit;  // our descriptor, its number in the child (>= 3)
  bool new_session = false;                  // setsid
  bool controlling_terminal = false;         // with new_session: stdin_fd is its terminal
  std::optional<int> death_signal;  // PR_SET_PDEATHSIG: sent when the thread that spawned ends
  bool raise_limits = false;        // soft limits of nofile and memlock to hard
  std::vector<int> cpus = {};       // that it may use; empty: those of this process
};

// Starts a process; returns its pid, which the caller must reap. Everything but stdio and `inherit`
// is closed in the child; signal mask and dispositions are the default. Throws Error when the
// program or workdir cannot be found or started, with the path it tried.
pid_t spawn(const SpawnOptions& options);

// How long this thread has waited, ever, for programs that it started to be so, and for what they
// start with: on a busy machine each has its turn late.
std::chrono::nanoseconds waited_for_starts() noexcept;

// Such a wait, as long as it is there.
class StartWait {
 public:
  StartWait() = default;
  ~StartWait();
  StartWait(const StartWait&) = delete;
  StartWait& operator=(const StartWait&) = delete;

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace dtrain

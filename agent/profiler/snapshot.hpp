#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What a process's threads hold at one moment. They stand still together for as long as it takes to
// copy registers and stacks, by ptrace(2), some milliseconds; names are found afterwards, while
// they run again.
namespace dtrain::profiler {

struct ThreadSnapshot {
  pid_t tid = 0;
  std::string name;
  char state = '?';                  // before it was stopped, as in /proc/PID/stat
  std::optional<long> system_call;   // the number of that which it is in
  std::chrono::milliseconds cpu{0};  // used so far
  std::string why_not;               // it could not be stopped; what follows is empty then
  user_regs_struct registers{};
  std::uint64_t stack_address = 0;  // of stack's first byte
  std::string stack;                // from the red zone up
  std::uint64_t stack_end = 0;      // of the memory that it is in; not all may have been copied
};

struct ProcessSnapshot {
  pid_t pid = 0;
  std::vector<ThreadSnapshot> threads;   // the first is the process's first
  std::chrono::microseconds stopped{0};  // so long its threads stood still, at most
};

struct SnapshotLimits {
  // So long it is waited for all of them to stand still. Then what stands still is copied, some
  // hundreds of MB a second, and goes on.
  std::chrono::milliseconds stopped{100};
  // More of a thread's stack is not copied: what is above is missing from its frames.
  std::size_t stack = std::size_t{1} << 20;
};

// Throws Error: not_found when there is no such process, denied when it may not be looked at, with
// what forbids it and how it is allowed. A thread that does not stop in time (state D) has why_not.
// However this ends, even by SIGKILL, all threads run again: the kernel lets go of what a thread
// that has ended held. Where copying takes 10 s this program ends by SIGALRM, so that they do: one
// caller at a time. System calls that signal(7) names end with EINTR by being stopped.
ProcessSnapshot take_snapshot(pid_t pid, const SnapshotLimits& limits = {});

}  // namespace dtrain::profiler

#include "agent/profiler/snapshot.hpp"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <sstream>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::profiler {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRedZone = 128;  // below the stack pointer, of the x86-64 ABI
constexpr std::chrono::microseconds kLook{200};
constexpr unsigned kLongest = 10;  // seconds
constexpr int kRounds = 20;        // of looking for threads that others have begun meanwhile

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> tids;
  std::error_code failed;
  for (const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", failed)) {
    tids.push_back(std::stoi(entry.path().filename().string()));
  }
  std::sort(tids.begin(), tids.end());
  const auto first = std::find(tids.begin(), tids.end(), pid);
  if (first != tids.end()) std::rotate(tids.begin(), first, first + 1);
  return tids;
}

[[noreturn]] void refuse(pid_t pid) {
  const std::string who = "process " + std::to_string(pid);
  Error error(ErrorCode::denied, "the system does not let " + who + " be looked at");
  std::string scope;
  try {
    scope = trimmed(read_file("/proc/sys/kernel/yama/ptrace_scope"));
  } catch (const Error&) {
    // A kernel without Yama.
  }
  if (!scope.empty() && scope != "0" && ::geteuid() != 0) {
    error.with_hint("kernel.yama.ptrace_scope is " + scope +
                    " there; as root: sysctl -w kernel.yama.ptrace_scope=0");
  } else if (::geteuid() == 0) {
    error.with_hint("in a container it needs CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)");
  } else {
    error.with_hint("it is another user's, or may not be traced (a program with more rights)");
  }
  throw error;
}

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

std::vector<Range> memory_of(pid_t pid) {
  std::string text;
  try {
    text = read_file("/proc/" + std::to_string(pid) + "/maps");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::denied) refuse(pid);
    throw;
  }
  std::vector<Range> ranges;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Range range{};
    char dash = 0;
    std::istringstream fields(line);
    if (fields >> std::hex >> range.begin >> dash >> range.end) ranges.push_back(range);
  }
  return ranges;
}

// Holds the threads of one process, all from one thread of ours: by its end they run again.
class Holder {
 public:
  Holder(pid_t pid, const SnapshotLimits& limits) : pid_(pid), limits_(limits) {}
  ~Holder() { let_go(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  ProcessSnapshot take() {
    // Before any of them stands still, for one that is in the kernel may hold what this waits for.
    const std::vector<Range> memory = memory_of(pid_);
    begin_ = Clock::now();
    seize_all();
    wait_for_all();
    copy(memory);
    let_go();
    ProcessSnapshot snapshot;
    snapshot.pid = pid_;
    snapshot.stopped = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_);
    for (const pid_t tid : order_) {
      const auto found = held_.find(tid);
      if (found != held_.end()) snapshot.threads.push_back(std::move(found->second.thread));
    }
    return snapshot;
  }

 private:
  struct Held {
    ThreadSnapshot thread;
    bool stopped = false;
    int signal = 0;  // was on its way to it
  };

  void seize_all() {
    bool is_new = true;
    for (int round = 0; is_new && round < kRounds; ++round) {
      is_new = false;
      for (const pid_t tid : threads_of(pid_)) {
        if (held_.contains(tid)) continue;
        const auto stat = thread_stat(pid_, tid);
        if (!stat) continue;
        Held held;
        held.thread.tid = tid;
        held.thread.name = printable(stat->name, false);
        held.thread.state = stat->state;
        held.thread.cpu = stat->cpu;
        if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
          if (errno == ESRCH || has_ended(tid)) continue;
          const pid_t tracer = tracer_of(tid);
          // Another may have let go of it meanwhile.
          if (tracer == 0 && ::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
            if (errno == ESRCH || has_ended(tid)) continue;
            refuse(pid_);
          }
          if (tracer != 0)
            held.thread.why_not = "process " + std::to_string(tracer) + " traces it already";
        }
        if (held.thread.why_not.empty()) ::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr);
        is_new = true;
        order_.push_back(tid);
        held_.emplace(tid, std::move(held));
      }
    }
    if (held_.empty())
      throw Error(ErrorCode::not_found, "there is no process " + std::to_string(pid_));
  }

  // The kernel refuses to trace what has, as if it were not allowed.
  bool has_ended(pid_t tid) const {
    const auto stat = thread_stat(pid_, tid);
    return !stat || stat->state == 'Z' || stat->state == 'X';
  }

  pid_t tracer_of(pid_t tid) const {
    const std::string at = "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(tid);
    const std::string status = read_file_if_there(at + "/status").value_or("");
    const auto said = status.find("TracerPid:");
    return said == std::string::npos ? 0 : std::atoi(status.c_str() + said + 10);
  }

  void wait_for_all() {
    const auto until = begin_ + limits_.stopped;
    while (true) {
      bool all = true;
      for (auto each = held_.begin(); each != held_.end();) {
        Held& held = each->second;
        int status = 0;
        const bool pending = !held.stopped && held.thread.why_not.empty();
        const pid_t found = pending ? ::waitpid(each->first, &status, __WALL | WNOHANG) : 0;
        if (found == each->first && !WIFSTOPPED(status)) {
          each = held_.erase(each);  // it has ended
          continue;
        }
        if (found == each->first) {
          held.stopped = true;
          // Of a stop by PTRACE_INTERRUPT the event is told; else it is a signal's.
          if (status >> 16 != PTRACE_EVENT_STOP) held.signal = WSTOPSIG(status);
        }
        all = all && (!pending || held.stopped);
        ++each;
      }
      if (all) return;
      if (Clock::now() >= until) break;
      std::this_thread::sleep_for(kLook);
    }
    for (auto& [tid, held] : held_) {
      if (held.stopped || !held.thread.why_not.empty()) continue;
      held.thread.why_not = "it did not stop within " + human_duration(limits_.stopped) +
                            (held.thread.state == 'D' ? ": it is in the kernel (state D)" : "");
    }
  }

  void copy(const std::vector<Range>& memory) {
    for (auto& [tid, held] : held_) {
      ThreadSnapshot& thread = held.thread;
      if (!held.stopped) continue;
      if (::ptrace(PTRACE_GETREGS, tid, nullptr, &thread.registers) != 0) {
        thread.why_not = errno_error("its registers cannot be read", errno).message();
        continue;
      }
      const auto call = static_cast<std::int64_t>(thread.registers.orig_rax);
      if (call >= 0 && thread.state != 'R') thread.system_call = call;
      copy_stack(memory, thread);
    }
  }

  void copy_stack(const std::vector<Range>& memory, ThreadSnapshot& thread) const {
    const std::uint64_t pointer = thread.registers.rsp;
    for (const Range& range : memory) {
      if (pointer < range.begin || pointer >= range.end) continue;
      thread.stack_address = pointer - std::min(kRedZone, pointer - range.begin);
      thread.stack_end = range.end;
      thread.stack.resize(std::min(range.end - thread.stack_address, limits_.stack));
      const iovec here{thread.stack.data(), thread.stack.size()};
      // NOLINTNEXTLINE(performance-no-int-to-ptr): of another process
      const iovec there{reinterpret_cast<void*>(thread.stack_address), thread.stack.size()};
      const ssize_t got = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
      thread.stack.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
      return;
    }
  }

  // Those that did not stop are let go by the end of this thread.
  void let_go() {
    for (auto& [tid, held] : held_) {
      if (!held.stopped) continue;
      ::ptrace(PTRACE_DETACH, tid, nullptr, held.signal);
      held.stopped = false;
    }
  }

  pid_t pid_;
  SnapshotLimits limits_;
  Clock::time_point begin_;
  std::vector<pid_t> order_;
  std::map<pid_t, Held> held_;
};

}  // namespace

ProcessSnapshot take_snapshot(pid_t pid, const SnapshotLimits& limits) {
  ProcessSnapshot snapshot;
  std::exception_ptr failed;
  // Copying waits for nobody but the kernel. Where that takes long this program ends, by SIGALRM,
  // and they run again.
  ::alarm(kLongest);
  std::thread([&] {
    try {
      snapshot = Holder(pid, limits).take();
    } catch (...) {
      failed = std::current_exception();
    }
  }).join();
  ::alarm(0);
  if (failed) std::rethrow_exception(failed);
  return snapshot;
}

}  // namespace dtrain::profiler

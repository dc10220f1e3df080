#include "launcher/core/process_exit.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain {
namespace {

ProcessExit exit_from(const siginfo_t& info) {
  ProcessExit exit;
  if (info.si_code == CLD_EXITED) {
    exit.code = info.si_status;
  } else {
    exit.signal = info.si_status;
  }
  return exit;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string ProcessExit::str() const {
  if (signal != 0) return "signal " + std::to_string(signal) + " (" + signal_name(signal) + ")";
  return "exit code " + std::to_string(code);
}

std::optional<ProcessExit> try_wait(pid_t pid) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0) {
    if (errno != EINTR) throw errno_error("cannot wait for process " + std::to_string(pid), errno);
  }
  if (info.si_pid == 0) return std::nullopt;
  return exit_from(info);
}

ProcessExit wait(pid_t pid) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED) != 0) {
    if (errno != EINTR) throw errno_error("cannot wait for process " + std::to_string(pid), errno);
  }
  return exit_from(info);
}

std::optional<ProcessExit> wait_until(pid_t pid, std::chrono::steady_clock::time_point deadline) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  while (true) {
    if (const auto exit = try_wait(pid)) return exit;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    // Kernels before 5.3 have no descriptor to wait on: look every few milliseconds.
    pollfd polled{process.get(), POLLIN, 0};
    ::poll(&polled, 1, process ? static_cast<int>(left.count()) : 3);
  }
}

std::optional<std::pair<pid_t, ProcessExit>> try_wait_any() {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) {
    if (errno == ECHILD) return std::nullopt;
    if (errno != EINTR) throw errno_error("cannot wait for children", errno);
  }
  if (info.si_pid == 0) return std::nullopt;
  return std::pair(info.si_pid, exit_from(info));
}

void reap_orphans(const std::vector<pid_t>& owned) {
  // waitid(P_ALL, WNOWAIT) shows the same ended child again until it is reaped, so an owned one at
  // the front would hide the rest: look at our children one by one instead.
  std::error_code failed;
  const std::string children = "/proc/self/task";
  for (const auto& task : fs::directory_iterator(children, failed)) {
    std::string text;
    try {
      text = read_file(task.path() / "children");
    } catch (const Error&) {
      continue;
    }
    for (const std::string& word : split(text, ' ')) {
      const pid_t pid = number_from<pid_t>(word).value_or(0);
      if (pid <= 0 || std::find(owned.begin(), owned.end(), pid) != owned.end()) continue;
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
    }
  }
}

}  // namespace dtrain

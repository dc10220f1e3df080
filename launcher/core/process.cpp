#include "launcher/core/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/no_signals.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/open_files.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/program.hpp"

extern char** environ;

namespace dtrain {
namespace {

thread_local std::chrono::nanoseconds waited_here{0};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

std::string value_of(const std::vector<std::string>& env, std::string_view name) {
  for (const std::string& entry : env) {
    if (entry.size() > name.size() && entry.compare(0, name.size(), name) == 0 &&
        entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

std::string find_program(const SpawnOptions& options) {
  const std::string& name = options.argv.front();
  if (name.find('/') != std::string::npos) return name;
  std::string path = value_of(options.env, "PATH");
  if (path.empty()) path = "/usr/local/bin:/usr/bin:/bin";
  if (const auto found = find_in_path(name, path)) return found->string();
  throw NotStartable(ErrorCode::not_found, "no program " + name + " in PATH (" + path + ")");
}

[[noreturn]] void refuse(const std::string& what, int error) {
  const Error why = errno_error(what, error);
  if (fails_again(error)) throw NotStartable(why.code(), why.message());
  throw why;
}

struct Failure {
  int step;  // 0 exec, 1 chdir, 2 other, 3 cgroup, 4 CPUs
  int error;
};

// Runs in the child between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const SpawnOptions& options, int cgroup_procs, const char* program,
                         char* const* argv, char* const* envp, int report_fd, pid_t parent,
                         int highest_fd) {
  const auto fail = [&](int step) {
    const Failure failure{step, errno};
    [[maybe_unused]] const ssize_t n = ::write(report_fd, &failure, sizeof failure);
    ::_exit(127);
  };
  if (options.death_signal) {
    if (::prctl(PR_SET_PDEATHSIG, *options.death_signal) != 0) fail(2);
    if (::getppid() != parent) ::_exit(127);
  }
  if (cgroup_procs >= 0 && ::write(cgroup_procs, "0", 1) != 1) fail(3);
  if (!options.cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : options.cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
    if (::sched_setaffinity(0, sizeof set, &set) != 0) fail(4);
  }
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    ::sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.new_session && ::setsid() < 0) fail(2);

  // First everything above the highest number in use, so that no copy overwrites another.
  int source[3] = {options.stdin_fd, options.stdout_fd, options.stderr_fd};
  for (int& fd : source) {
    if (fd < 0) fd = ::open("/dev/null", O_RDWR);
    fd = ::fcntl(fd, F_DUPFD, highest_fd + 1);
    if (fd < 0) fail(2);
  }
  int moved_report = ::fcntl(report_fd, F_DUPFD_CLOEXEC, highest_fd + 1);
  if (moved_report < 0) fail(2);
  report_fd = moved_report;
  std::array<int, 16> inherited{};
  const std::size_t count = std::min(options.inherit.size(), inherited.size());
  for (std::size_t i = 0; i < count; ++i) {
    inherited[i] = ::fcntl(options.inherit[i].first, F_DUPFD, highest_fd + 1);
    if (inherited[i] < 0) fail(2);
  }
  for (int fd = 0; fd < 3; ++fd) {
    if (::dup2(source[fd], fd) < 0) fail(2);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (::dup2(inherited[i], options.inherit[i].second) < 0) fail(2);
  }
  // Close the rest: by close_range where the kernel has it, else one by one.
  const auto wanted = [&](int fd) {
    if (fd < 3 || fd == report_fd) return true;
    for (std::size_t i = 0; i < count; ++i) {
      if (options.inherit[i].second == fd) return true;
    }
    return false;
  };
  const int last = highest_fd + 64;
  for (int fd = 3; fd <= last; ++fd) {
    if (!wanted(fd)) ::close(fd);
  }
#ifdef SYS_close_range
  ::syscall(SYS_close_range, static_cast<unsigned>(last + 1), ~0U, 0U);
#endif
  if (options.controlling_terminal && ::ioctl(0, TIOCSCTTY, 0) != 0) fail(2);
  restore_open_files();
  if (options.raise_limits) {
    for (const auto resource : {RLIMIT_NOFILE, RLIMIT_MEMLOCK}) {
      struct rlimit limit {};
      if (::getrlimit(resource, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(resource, &limit);
      }
    }
  }
  if (!options.workdir.empty() && ::chdir(options.workdir.c_str()) != 0) fail(1);
  ::execve(program, argv, envp);
  fail(0);
  ::_exit(127);
}

int highest_open_fd(const SpawnOptions& options) {
  int highest = 63;
  for (const auto& [ours, theirs] : options.inherit) highest = std::max({highest, ours, theirs});
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", failed)) {
    highest = std::max(highest, number_from<int>(entry.path().filename().string()).value_or(0));
  }
  return highest;
}

}  // namespace

pid_t spawn(const SpawnOptions& options) {
  return cgroup::spawn(options, -1);
}

pid_t cgroup::spawn(const SpawnOptions& options, int procs) {
  if (options.argv.empty()) throw Error(ErrorCode::invalid, "there is no program to start");
  const std::string program = find_program(options);
  const std::vector<char*> argv = pointers(options.argv);
  const std::vector<char*> envp = pointers(options.env);
  auto [reader, writer] = make_pipe();
  const int highest = highest_open_fd(options);
  const pid_t parent = ::getpid();

  std::optional<NoSignals> none(std::in_place);
  const pid_t pid = ::fork();
  const int fork_error = errno;
  if (pid == 0) {
    become(options, procs, program.c_str(), argv.data(), envp.data(), writer.get(), parent,
           highest);
  }
  none.reset();
  if (pid < 0) throw errno_error("cannot start " + program, fork_error);

  writer.reset();
  const StartWait waits;
  Failure failure{};
  ssize_t got = 0;
  do {
    got = ::read(reader.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return pid;  // closed by exec
  // Where another thread reaps orphans it may have been faster.
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (failure.step == 1) refuse("cannot start in folder " + options.workdir, failure.error);
  if (failure.step == 3) {
    throw errno_error("cannot start " + program + " in its cgroup", failure.error);
  }
  if (failure.step == 4) {
    throw errno_error("cannot start " + program + " on its CPUs", failure.error);
  }
  if (failure.step == 0) refuse("cannot start " + program, failure.error);
  throw errno_error("cannot start " + program, failure.error);
}

std::chrono::nanoseconds waited_for_starts() noexcept {
  return waited_here;
}

StartWait::~StartWait() {
  waited_here += std::chrono::steady_clock::now() - begin_;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  return env;
}

std::vector<std::string> manager_environment() {
  std::vector<std::string> env = current_environment();
  if (std::getenv("XDG_RUNTIME_DIR") == nullptr) {
    env.push_back("XDG_RUNTIME_DIR=/run/user/" + std::to_string(::geteuid()));
  }
  return env;
}

}  // namespace dtrain

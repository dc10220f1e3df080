#include "launcher/core/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>

#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/open_files.hpp"
#include "launcher/core/program.hpp"
#include "launcher/core/text.hpp"

extern char** environ;

namespace dtrain {
namespace {

constexpr std::size_t kCaptureLimit = std::size_t{16} << 20;

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
  int step;  // 0 exec, 1 chdir, 2 other, 3 cgroup
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
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    ::sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.new_session && ::setsid() < 0) fail(2);
  if (options.new_group && ::setpgid(0, 0) != 0) fail(2);

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
    const std::string name = entry.path().filename().string();
    int number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    highest = std::max(highest, number);
  }
  return highest;
}

ProcessExit exit_from(const siginfo_t& info) {
  ProcessExit exit;
  if (info.si_code == CLD_EXITED) {
    exit.code = info.si_status;
  } else {
    exit.signal = info.si_status;
  }
  return exit;
}

// Reaps a child that ends before the deadline.
std::optional<ProcessExit> wait_until(pid_t pid, std::chrono::steady_clock::time_point deadline) {
#ifdef SYS_pidfd_open
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
#else
  const UniqueFd process;
#endif
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

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc{} && end == name.data() + name.size()) pids.push_back(pid);
  }
  return pids;
}

// State letter and start time from /proc/PID/stat; the name in it may hold any character.
std::optional<std::pair<char, std::uint64_t>> read_stat(pid_t pid) {
  std::string text;
  try {
    text = read_file("/proc/" + std::to_string(pid) + "/stat", 65536);
  } catch (const Error&) {
    return std::nullopt;
  }
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return std::nullopt;
  const std::vector<std::string> fields = split(std::string_view(text).substr(name_end + 2), ' ');
  if (fields.size() < 20) return std::nullopt;
  return std::pair{fields[0].empty() ? '?' : fields[0][0],
                   static_cast<std::uint64_t>(std::strtoull(fields[19].c_str(), nullptr, 10))};
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

pid_t spawn(const SpawnOptions& options) {
  return cgroup::spawn(options, -1);
}

pid_t cgroup::spawn(const SpawnOptions& options, int procs) {
  if (options.argv.empty()) throw Error(ErrorCode::invalid, "there is no program to start");
  const std::string program = find_program(options);
  const std::vector<char*> argv = pointers(options.argv);
  const std::vector<char*> envp = pointers(options.env);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const int highest = highest_open_fd(options);
  const pid_t parent = ::getpid();

  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  const int fork_error = errno;
  if (pid == 0) {
    become(options, procs, program.c_str(), argv.data(), envp.data(), writer.get(), parent,
           highest);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw errno_error("cannot start " + program, fork_error);

  writer.reset();
  Failure failure{};
  ssize_t got = 0;
  do {
    got = ::read(reader.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return pid;  // closed by exec
  wait(pid);
  if (failure.step == 1) refuse("cannot start in folder " + options.workdir, failure.error);
  if (failure.step == 3) {
    throw errno_error("cannot start " + program + " in its cgroup", failure.error);
  }
  if (failure.step == 0) refuse("cannot start " + program, failure.error);
  throw errno_error("cannot start " + program, failure.error);
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
      pid_t pid = 0;
      std::from_chars(word.data(), word.data() + word.size(), pid);
      if (pid <= 0 || std::find(owned.begin(), owned.end(), pid) != owned.end()) continue;
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
    }
  }
}

std::vector<std::string> current_environment() {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  return env;
}

Captured capture(SpawnOptions options, std::string_view input, std::chrono::milliseconds deadline) {
  int in[2];
  int out[2];
  int err[2];
  if (::pipe2(in, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  UniqueFd in_reader(in[0]);
  UniqueFd in_writer(in[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  UniqueFd out_reader(out[0]);
  UniqueFd out_writer(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  UniqueFd err_reader(err[0]);
  UniqueFd err_writer(err[1]);
  options.stdin_fd = in_reader.get();
  options.stdout_fd = out_writer.get();
  options.stderr_fd = err_writer.get();
  options.new_session = true;

  Captured result;
  const auto until = std::chrono::steady_clock::now() + deadline;
  const pid_t pid = spawn(options);
  in_reader.reset();
  out_writer.reset();
  err_writer.reset();
  for (UniqueFd* fd : {&in_writer, &out_reader, &err_reader}) {
    ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  }
  // A write to a program that has closed its stdin must be an error and not a signal.
  sigset_t pipe_signal;
  sigset_t before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);

  const auto drain = [](UniqueFd& fd, std::string& into) {
    std::array<char, 65536> buffer;
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got > 0 && into.size() < kCaptureLimit) {
      into.append(buffer.data(), static_cast<std::size_t>(got));
    }
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) fd.reset();
  };
  while (out_reader || err_reader) {
    if (input.empty()) in_writer.reset();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      result.timed_out = true;
      break;
    }
    std::array<pollfd, 3> polled{{{in_writer.get(), POLLOUT, 0},
                                  {out_reader.get(), POLLIN, 0},
                                  {err_reader.get(), POLLIN, 0}}};
    if (::poll(polled.data(), polled.size(), static_cast<int>(left.count())) < 0 &&
        errno != EINTR) {
      break;
    }
    if (in_writer && polled[0].revents != 0) {
      const ssize_t wrote = ::write(in_writer.get(), input.data(), input.size());
      if (wrote > 0) input.remove_prefix(static_cast<std::size_t>(wrote));
      if (wrote < 0 && errno != EAGAIN && errno != EINTR) in_writer.reset();
    }
    if (out_reader && polled[1].revents != 0) drain(out_reader, result.out);
    if (err_reader && polled[2].revents != 0) drain(err_reader, result.err);
  }
  const timespec zero{};
  while (::sigtimedwait(&pipe_signal, nullptr, &zero) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  // It may have closed its outputs and run on.
  if (!result.timed_out) {
    if (const auto exit = wait_until(pid, until)) {
      result.exit = *exit;
      return result;
    }
    result.timed_out = true;
  }
  ::kill(-pid, SIGKILL);
  result.exit = wait(pid);
  return result;
}

std::optional<std::uint64_t> start_time(pid_t pid) {
  const auto stat = read_stat(pid);
  if (!stat || stat->first == 'Z') return std::nullopt;
  return stat->second;
}

std::string boot_id() {
  std::string id = read_file("/proc/sys/kernel/random/boot_id", 4096);
  while (!id.empty() && (id.back() == '\n' || id.back() == ' ')) id.pop_back();
  return id;
}

std::vector<pid_t> find_by_environment(const std::string& name, const std::string& value) {
  const std::string entry = name + "=" + value;
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids()) {
    if (pid == ::getpid()) continue;
    std::string env;
    try {
      env = read_file("/proc/" + std::to_string(pid) + "/environ", std::size_t{4} << 20);
    } catch (const Error&) {
      continue;  // gone, or another user's
    }
    for (std::size_t at = env.find(entry); at != std::string::npos; at = env.find(entry, at + 1)) {
      const std::size_t end = at + entry.size();
      if ((at == 0 || env[at - 1] == '\0') && (end == env.size() || env[end] == '\0')) {
        found.push_back(pid);
        break;
      }
    }
  }
  return found;
}

std::vector<pid_t> sweep(const std::string& name, const std::string& value,
                         std::chrono::milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (true) {
    const std::vector<pid_t> left = find_by_environment(name, value);
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    if (left.empty() || std::chrono::steady_clock::now() >= until) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace dtrain

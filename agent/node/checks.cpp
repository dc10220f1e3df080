#include "agent/node/checks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::node {
namespace {

using namespace std::chrono_literals;

constexpr auto kSteady = 20ms;
constexpr auto kKilled = 5s;
constexpr auto kExecEnds = 1s;  // some stay for good, and nobody is to wait for them each time
constexpr auto kSocketsSettled = 10min;
constexpr auto kDriverLimit = 10s;
constexpr auto kXidLately = 24h;
constexpr rlim_t kFewOpenFiles = 4096;
constexpr rlim_t kFewProcesses = 1024;
constexpr std::size_t kMostNamed = 5;
constexpr std::size_t kMostSaid = std::size_t{64} << 10;
constexpr const char* kExitLine = "dtrain-exit-code ";

std::string counted(std::size_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

bool lives(const FoundProcess& process) {
  const auto stat = process_stat(process.pid);
  return stat && stat->start == process.start_time && !stat->ended();
}

// Only what is still that process: a descriptor of it is held from before the look at who it is.
void kill_process(const FoundProcess& process) {
#ifdef SYS_pidfd_open
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (fd) {
    if (start_time(process.pid) == process.start_time) {
      ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
    }
    return;
  }
  if (errno == ESRCH) return;
#endif
  signal_process(process, SIGKILL);  // a kernel before 5.3
}

std::string named(const std::vector<FoundProcess>& processes) {
  std::vector<std::string> names;
  for (const FoundProcess& process : processes) {
    const auto stat = process_stat(process.pid);
    std::string name = std::to_string(process.pid);
    if (stat) name += " (" + printable(stat->name, false) + ")";
    if (!process.attempt.empty()) {
      const fs::path attempt = process.attempt;
      name += " of " + printable_path(attempt.parent_path().filename() / attempt.filename());
    }
    names.push_back(std::move(name));
  }
  return join_some(names, kMostNamed);
}

// Of a socket in a folder of ours; what cannot be told counts as somebody.
bool somebody_listens(const fs::path& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.string().size() >= sizeof address.sun_path) return true;
  std::strcpy(address.sun_path, socket.c_str());  // NOLINT: it fits
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return true;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return true;
  }
  return errno != ECONNREFUSED && errno != ENOENT;
}

bool is_gone(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

bool is_stale(const fs::path& folder, const fs::path& root, WallTime now) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
  if (status.st_uid != ::geteuid() || !is_gone(root)) return false;
  if (now - WallTime(std::chrono::seconds(status.st_mtime)) < kSocketsSettled) return false;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.symlink_status(none).type() == fs::file_type::socket &&
        somebody_listens(entry.path())) {
      return false;
    }
  }
  return !none;
}

// Out of everybody's way first: who makes the root anew meanwhile makes a folder of his own.
void remove_stale(const StaleSockets& stale, WallTime now) {
  fs::path away = stale.folder;
  away += ".removed-" + std::to_string(::getpid());
  if (::rename(stale.folder.c_str(), away.c_str()) != 0) {
    if (errno == ENOENT) return;  // another node of this machine was quicker
    throw errno_error("cannot remove " + printable_path(stale.folder), errno);
  }
  if (!is_stale(away, stale.root, now)) {
    ::rename(away.c_str(), stale.folder.c_str());
    throw Error(ErrorCode::conflict, printable_path(stale.root) + " is there again");
  }
  remove_tree(away);
}

bool has_infiniband() {
  std::error_code none;
  return fs::directory_iterator("/sys/class/infiniband", none) != fs::directory_iterator();
}

std::vector<std::string> read_kernel_log() {
  constexpr std::size_t kMostLines = 100000;
  std::vector<std::string> lines;
  const UniqueFd fd(::open("/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char record[8192];
  while (fd && lines.size() < kMostLines) {  // each read is one record
    const ssize_t got = ::read(fd.get(), record, sizeof record);
    if (got < 0 && errno == EPIPE) continue;  // overwritten meanwhile
    if (got <= 0) break;
    std::string line(record, static_cast<std::size_t>(got));
    if (line.find("NVRM: Xid") != std::string::npos) lines.push_back(std::move(line));
  }
  return lines;
}

// "6,1234,98765432,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus" of the last day.
std::vector<std::string> xid_errors(const Driver& driver) {
  std::vector<std::string> found;
  for (const std::string& line : driver.kernel_log) {
    const std::size_t text = line.find(';');
    const std::vector<std::string> head = split(line.substr(0, text), ',');
    if (text == std::string::npos || head.size() < 3) continue;
    const auto micros = number_from<std::uint64_t>(std::string_view(head[2]));
    if (!micros || driver.up - std::chrono::microseconds(*micros) > kXidLately) continue;
    found.push_back(printable(trimmed(line.substr(text + 1, line.find('\n') - text - 1)), false));
  }
  return found;
}

}  // namespace

Strays strays(const paths::NodeRoot& root, const std::vector<FoundProcess>& found,
              const KnownHere& known) {
  std::set<std::string> alive;
  for (const auto& [job, number] : known.attempts) {
    alive.insert(paths::attempt(root, job, number).root.string());
  }
  const std::set<pid_t> sessions(known.execs.begin(), known.execs.end());
  Strays strays;
  for (const FoundProcess& process : found) {
    if (!process.attempt.empty()) {
      if (!alive.contains(process.attempt)) strays.of_attempts.push_back(process);
    } else if (process.what == "exec" && !sessions.contains(::getsid(process.pid))) {
      strays.of_execs.push_back(process);
    }
  }
  return strays;
}

void leave_out_ending(Strays& strays, std::chrono::milliseconds limit) {
  const auto now = std::chrono::steady_clock::now();
  const auto until = now + limit;
  const auto until_execs = now + std::min<std::chrono::milliseconds>(limit, kExecEnds);
  const auto is_over = [](const FoundProcess& process) { return !lives(process); };
  while (true) {
    std::erase_if(strays.of_attempts, is_over);
    std::erase_if(strays.of_execs, is_over);
    const auto enough = !strays.of_attempts.empty() ? until : until_execs;
    if (strays.of_attempts.empty() && strays.of_execs.empty()) return;
    if (std::chrono::steady_clock::now() >= enough) return;
    std::this_thread::sleep_for(kSteady);
  }
}

void judge_strays(const Strays& strays, bool fix, Findings& findings) {
  if (!strays.of_attempts.empty()) {
    const std::size_t count = strays.of_attempts.size();
    link::Finding& finding =
        findings.problem("processes",
                         counted(count, "process of an attempt that is over still runs: ",
                                 "processes of attempts that are over still run: ") +
                             named(strays.of_attempts),
                         "dtrain doctor --fix");
    link::fixable_by(finding, fix, [&] {
      for (const FoundProcess& process : strays.of_attempts) kill_process(process);
      Strays left{strays.of_attempts, {}};
      leave_out_ending(left, kKilled);
      if (!left.of_attempts.empty()) {
        throw Error(ErrorCode::failed, "it was killed and does not end: " + named(left.of_attempts))
            .with_hint("it waits in the kernel: only a reboot ends it");
      }
    });
  }
  if (!strays.of_execs.empty()) {
    findings.note("processes",
                  counted(strays.of_execs.size(), "process was left behind by a command of exec: ",
                          "processes were left behind by commands of exec: ") +
                      named(strays.of_execs),
                  "well where it is meant; else `dtrain exec --node NODE -- kill PID`");
  }
  if (strays.of_attempts.empty()) {
    findings.looked.emplace_back("processes: all are of attempts under way");
  }
}

std::vector<StaleSockets> stale_sockets(const fs::path& folders, WallTime now) {
  std::vector<StaleSockets> found;
  for (const fs::path& entry : entries_of(folders)) {
    std::error_code unsaid;
    const fs::path root = fs::read_symlink(paths::root_link(entry), unsaid);
    if (!unsaid && is_stale(entry, root, now)) found.push_back({entry, root});
  }
  return found;
}

void judge_sockets(const fs::path& folders, const std::vector<StaleSockets>& stale, bool fix,
                   Findings& findings) {
  if (stale.empty()) {
    findings.looked.push_back("sockets: no folder in " + printable_path(folders) +
                              " is of a root that is gone");
    return;
  }
  std::vector<std::string> names;
  for (const StaleSockets& each : stale) {
    names.push_back(printable_path(each.folder) + " (" + printable_path(each.root) + ")");
  }
  link::Finding& finding = findings.note(
      "sockets",
      counted(stale.size(), "folder of sockets is", "folders of sockets are") +
          " left of roots that are not there any more: " + join_some(names, kMostNamed),
      "dtrain doctor --fix");
  link::fixable_by(finding, fix, [&] {
    for (const StaleSockets& each : stale) remove_stale(each, std::chrono::system_clock::now());
  });
}

Limits look_at_limits() {
  const auto hard = [](int resource) {
    rlimit limit{};
    return ::getrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 ? limit.rlim_max
                                                                              : RLIM_INFINITY;
  };
  Limits limits;
  limits.open_files = hard(RLIMIT_NOFILE);
  limits.processes = hard(RLIMIT_NPROC);
  limits.locked_memory = hard(RLIMIT_MEMLOCK);
  limits.infiniband = has_infiniband();
  limits.is_root = ::geteuid() == 0;
  try {
    limits.ptrace_scope =
        trimmed(read_file_if_there("/proc/sys/kernel/yama/ptrace_scope", 64).value_or(""));
  } catch (const Error&) {
    // As good as none.
  }
  return limits;
}

void judge_limits(const Limits& limits, Findings& findings) {
  const std::size_t before = findings.found.size();
  if (limits.open_files < kFewOpenFiles) {
    findings.note("limits",
                  "a process may have " + std::to_string(limits.open_files) +
                      " open files: data loaders and many ranks need more",
                  "raise the hard limit nofile (limits.conf, LimitNOFILE=, docker --ulimit)");
  }
  if (!limits.is_root && limits.processes < kFewProcesses) {
    findings.note("limits",
                  "this user may have " + std::to_string(limits.processes) +
                      " processes and threads: ranks of many threads need more",
                  "raise the hard limit nproc (limits.conf, LimitNPROC=)");
  }
  if (limits.infiniband && limits.locked_memory != RLIM_INFINITY) {
    findings.note("limits",
                  human_bytes(limits.locked_memory) +
                      " of memory may be locked, and there is InfiniBand: NCCL may fail to "
                      "register its buffers",
                  "raise the hard limit memlock to unlimited (limits.conf, LimitMEMLOCK=)");
  }
  if (!limits.is_root && !limits.ptrace_scope.empty() && limits.ptrace_scope != "0") {
    findings.note("limits",
                  "`dtrain stack` may not look at ranks: kernel.yama.ptrace_scope is " +
                      printable(limits.ptrace_scope, false),
                  "as root: sysctl -w kernel.yama.ptrace_scope=0");
  }
  if (findings.found.size() == before) {
    findings.looked.emplace_back("limits: open files, processes, locked memory, ptrace");
  }
}

std::optional<std::pair<int, std::string>> ask_program(const std::string& command_line,
                                                       const std::vector<std::string>& environment,
                                                       std::chrono::milliseconds limit) {
  auto [ours, theirs] = make_pipe();
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c",
                  command_line + " 2>&1; printf '\\n%s%s\\n' '" + kExitLine + "' $?"};
  options.env = environment;
  options.workdir = "/";
  options.stdout_fd = theirs.get();
  options.stderr_fd = theirs.get();
  options.new_session = true;
  const pid_t pid = spawn(options);
  theirs.reset();
  std::string said;
  const auto until = std::chrono::steady_clock::now() + limit;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd waits{ours.get(), POLLIN, 0};
    const int ready = left.count() > 0 ? ::poll(&waits, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    char buffer[4096];
    const ssize_t got = ready > 0 ? ::read(ours.get(), buffer, sizeof buffer) : -1;
    if (got == 0) break;
    if (got < 0) {
      ::kill(-pid, SIGKILL);
      return std::nullopt;
    }
    said.append(buffer, static_cast<std::size_t>(got));
    if (said.size() > kMostSaid) said.erase(0, said.size() - kMostSaid);
  }
  const std::size_t line = said.rfind(kExitLine);
  if (line == std::string::npos) return std::nullopt;  // it was killed by somebody else
  const auto code = number_from<int>(trimmed(said.substr(line + std::strlen(kExitLine))));
  return std::pair{code.value_or(-1), trimmed(said.substr(0, line))};
}

std::optional<Driver> look_at_driver(const std::vector<std::string>& environment,
                                     const fs::path& proc, const fs::path& devices) {
  std::error_code none;
  if (!fs::exists(proc / "version", none)) return std::nullopt;
  Driver driver;
  for (const auto& gpu : fs::directory_iterator(proc / "gpus", none)) {
    static constexpr std::string_view kMinor = "Device Minor:";
    const auto text = read_file_if_there(gpu.path() / "information", 65536);
    const std::size_t at = text ? text->find(kMinor) : std::string::npos;
    if (at == std::string::npos) continue;
    const std::string rest = text->substr(at + kMinor.size());
    const auto minor = number_from<int>(trimmed(rest.substr(0, rest.find('\n'))));
    // A container or an allocation may have some of the machine's GPUs alone.
    const fs::path device = devices / ("nvidia" + std::to_string(minor.value_or(-1)));
    if (minor && UniqueFd(::open(device.c_str(), O_RDWR | O_CLOEXEC))) {
      driver.gpus.push_back(*minor);
    }
  }
  if (const auto answer = ask_program("nvidia-smi -L", environment, kDriverLimit)) {
    driver.answered = true;
    std::tie(driver.exit_code, driver.said) = *answer;
  }
  driver.kernel_log = read_kernel_log();
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  driver.up = std::chrono::seconds(up.tv_sec);
  return driver;
}

void judge_driver(const Driver& driver, Findings& findings) {
  constexpr int kNoProgram = 127;
  std::size_t listed = 0;
  for (const std::string& line : split(driver.said, '\n')) {
    if (line.starts_with("GPU ")) ++listed;
  }
  const std::string first = printable(driver.said.substr(0, driver.said.find('\n')), false);
  if (!driver.answered) {
    findings.problem("drivers",
                     "nvidia-smi has not answered within " + human_duration(kDriverLimit),
                     "a GPU or its driver hangs: look at dmesg; a reboot may be needed");
  } else if (driver.exit_code == kNoProgram) {
    findings.note("drivers", "NVIDIA's driver is loaded, and nvidia-smi is not in the PATH",
                  "install it beside the driver, or put it in the login environment's PATH");
  } else if (driver.exit_code != 0) {
    findings.problem(
        "drivers",
        "nvidia-smi ends with exit code " + std::to_string(driver.exit_code) + ": " + first,
        first.find("mismatch") == std::string::npos
            ? "look at dmesg; a reboot may be needed"
            : "the driver was updated under what runs: reboot, or load it anew");
  } else if (listed < driver.gpus.size()) {
    findings.problem("drivers",
                     "nvidia-smi lists " + std::to_string(listed) + " of the " +
                         std::to_string(driver.gpus.size()) + " GPUs that the driver has",
                     "a GPU may have fallen off the bus: look at dmesg for Xid; reboot");
  } else {
    findings.looked.push_back("drivers: nvidia-smi lists " + counted(listed, "GPU", "GPUs"));
  }
  if (const std::vector<std::string> errors = xid_errors(driver); !errors.empty()) {
    findings.note("drivers",
                  counted(errors.size(), "error", "errors") +
                      " of a GPU in the kernel's log of the last day, the last: " + errors.back(),
                  "NVIDIA's list of Xid errors says what the number means");
  }
}

}  // namespace dtrain::node

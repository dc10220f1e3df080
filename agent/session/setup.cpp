#include "agent/session/setup.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "agent/session/setup_files.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::session {
namespace {

using wire::SetupState;

constexpr std::chrono::milliseconds kCancelLimit{15000};
constexpr std::chrono::milliseconds kLastBreath{5000};

// Names the run whose output lies in the log; a list that had nothing to run keeps its last one.
wire::SetupStatus fresh_status(const std::string& list, const std::vector<std::string>& commands) {
  wire::SetupStatus status;
  status.list = list;
  const std::vector<std::string> chain = setup_chain(commands);
  for (std::size_t i = 0; i < commands.size(); ++i) {
    wire::SetupCommand command;
    command.command = commands[i];
    command.hash = chain[i];
    status.commands.push_back(command);
  }
  return status;
}

// How many commands from the first one on have succeeded here, the very same after the very same.
std::size_t succeeded_before(const wire::SetupStatus& before, const wire::SetupStatus& wanted) {
  std::size_t count = 0;
  while (count < before.commands.size() && count < wanted.commands.size() &&
         before.commands[count].hash == wanted.commands[count].hash &&
         before.commands[count].state == SetupState::succeeded) {
    ++count;
  }
  return count;
}

bool same_commands(const wire::SetupStatus& a, const wire::SetupStatus& b) {
  return a.commands.size() == b.commands.size() &&
         (a.commands.empty() || a.commands.back().hash == b.commands.back().hash);
}

// A run whose process was killed may have left the command that it was at.
void end_lost_run(const paths::NodeRoot& root, const std::string& list) {
  try {
    sweep(kSetupToken, read_order(root, list).token, std::chrono::seconds(5));
  } catch (const Error&) {
    // Its order is damaged: there is no telling what was its.
  }
}

// Tells of every change in setup/: of the log, of the status, and of the lock's release.
class SetupWatch {
 public:
  explicit SetupWatch(const fs::path& folder) : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (fd_) {
      ::inotify_add_watch(fd_.get(), folder.c_str(), IN_MODIFY | IN_MOVED_TO | IN_CLOSE_WRITE);
    }
  }

  // False when `interrupted_fd` has something to say. Comes back at least twice a second.
  bool wait(std::chrono::milliseconds limit, int interrupted_fd) {
    std::array<pollfd, 2> waiting{{{fd_.get(), POLLIN, 0}, {interrupted_fd, POLLIN, 0}}};
    const auto most = std::min<std::chrono::milliseconds>(limit, std::chrono::milliseconds(500));
    ::poll(waiting.data(), waiting.size(), static_cast<int>(most.count()));
    std::array<char, 4096> events{};
    while (fd_ && ::read(fd_.get(), events.data(), events.size()) > 0) {
    }
    return waiting[1].revents == 0;
  }

 private:
  UniqueFd fd_;
};

}  // namespace

std::vector<std::string> setup_chain(const std::vector<std::string>& commands) {
  std::vector<std::string> chain;
  std::string before;
  for (const std::string& command : commands) {
    Sha256 sum;
    sum.add(before + "\n" + command);
    before = sum.hex();
    chain.push_back(before);
  }
  return chain;
}

void check_list_name(const std::string& list) {
  const bool fine = !list.empty() && list.size() <= 40 &&
                    std::all_of(list.begin(), list.end(),
                                [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
  if (!fine) throw Error(ErrorCode::invalid, "a setup list's name has letters a to z and _ only");
}

wire::SetupStatus setup_status(const paths::NodeRoot& root, const std::string& list) {
  check_list_name(list);
  // The lock before the status: who has let go of it has written its last word.
  const bool locked = list_is_locked(root, list);
  wire::SetupStatus status = read_status(root, list).value_or(wire::SetupStatus{});
  status.list = list;
  if (status.state == SetupState::running && !locked) {
    status.state = SetupState::lost;
    for (wire::SetupCommand& command : status.commands) {
      if (command.state == SetupState::running) command.state = SetupState::lost;
    }
  }
  return status;
}

wire::SetupPlan plan_setup(const paths::NodeRoot& root, const std::string& list,
                           const std::vector<std::string>& commands) {
  const wire::SetupStatus now = setup_status(root, list);
  const wire::SetupStatus wanted = fresh_status(list, commands);
  wire::SetupPlan plan;
  plan.list = list;
  plan.total = static_cast<int>(commands.size());
  plan.first = static_cast<int>(succeeded_before(now, wanted));
  plan.running = now.state == SetupState::running && same_commands(now, wanted);
  return plan;
}

wire::SetupStatus start_setup(const paths::NodeRoot& root, const fs::path& program,
                              const wire::StartSetup& request) {
  const std::string& list = request.list;
  check_list_name(list);
  make_folders(root.setup());
  wire::SetupStatus wanted = fresh_status(list, request.commands);
  SetupWatch watch(root.setup());
  const auto until = std::chrono::steady_clock::now() + kLastBreath;
  auto lock = try_lock_list(root, list);
  wire::SetupStatus before = read_status(root, list).value_or(wire::SetupStatus{});
  // A run that has said its last word is about to let go of the lock.
  while (!lock && before.state != SetupState::running && std::chrono::steady_clock::now() < until) {
    watch.wait(std::chrono::milliseconds(20), -1);
    lock = try_lock_list(root, list);
    before = read_status(root, list).value_or(wire::SetupStatus{});
  }
  if (!lock) {
    if (before.state == SetupState::running && same_commands(before, wanted)) return before;
    throw Error(ErrorCode::conflict,
                "other commands of " + list + " are running on this node at the moment")
        .with_hint("wait for their end, or cancel them");
  }
  if (before.state == SetupState::running) end_lost_run(root, list);
  const std::size_t first = request.from_start ? 0 : succeeded_before(before, wanted);
  std::copy_n(before.commands.begin(), first, wanted.commands.begin());
  wanted.first = static_cast<int>(first);
  if (first == wanted.commands.size()) {
    wanted.state = SetupState::succeeded;
    wanted.run = before.run;
    // Commands that were taken off the end are not to be taken for done when they come back.
    if (before.commands.size() != first) write_status(root, wanted);
    return wanted;
  }
  wanted.run = random_hex(8);
  wanted.state = SetupState::running;
  const SetupOrder order{random_hex(16), request.env};
  std::error_code none;
  fs::rename(root.setup_log(list), root.setup_log(list).string() + ".1", none);
  open_file(root.setup_log(list), O_WRONLY | O_CREAT | O_TRUNC);
  write_order(root, list, order);
  write_status(root, wanted);
  SpawnOptions options;
  options.argv = {program.string(), "setup", "--root", root.root.string(), "--list", list};
  options.workdir = "/";
  options.new_session = true;
  options.inherit = {{lock->get(), kLockFd}};
  spawn(options);
  return wanted;
}

wire::SetupOutput read_setup(const paths::NodeRoot& root, const wire::ReadSetup& request,
                             int interrupted_fd, std::string& bytes) {
  check_list_name(request.list);
  if (request.offset < 0) throw Error(ErrorCode::invalid, "\"offset\" is negative");
  SetupWatch watch(root.setup());
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(request.wait_ms);
  wire::SetupOutput output;
  bool interrupted = false;
  while (true) {
    // The status before the log: what a run that is over has said is in the log by then.
    output.status = setup_status(root, request.list);
    if (output.status.run != request.run || request.run.empty()) {
      throw Error(ErrorCode::not_found,
                  "that run of " + request.list + " is not the last one here");
    }
    const UniqueFd log = open_file(root.setup_log(request.list), O_RDONLY);
    bytes.resize(wire::kSetupChunk);
    const ssize_t got = ::pread(log.get(), bytes.data(), bytes.size(), request.offset);
    if (got < 0) throw errno_error("cannot read " + root.setup_log(request.list).string(), errno);
    bytes.resize(static_cast<std::size_t>(got));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (got > 0 || output.status.state != SetupState::running || left.count() <= 0 || interrupted) {
      output.offset = request.offset + got;
      output.bytes = got;
      return output;
    }
    interrupted = !watch.wait(left, interrupted_fd);
  }
}

std::vector<std::string> running_lists(const paths::NodeRoot& root) {
  std::vector<std::string> lists;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root.setup(), none)) {
    if (entry.path().extension() != ".lock") continue;
    const std::string list = entry.path().stem().string();
    if (list_is_locked(root, list)) lists.push_back(list);
  }
  return lists;
}

wire::SetupStatus cancel_setup(const paths::NodeRoot& root, const std::string& list) {
  check_list_name(list);
  if (!list_is_locked(root, list)) return setup_status(root, list);
  SetupWatch watch(root.setup());
  const auto until = std::chrono::steady_clock::now() + kCancelLimit;
  bool asked = false;
  while (list_is_locked(root, list) && std::chrono::steady_clock::now() < until) {
    for (const FoundProcess& process : cluster_processes(root.root)) {
      if (asked || process.what != "setup" || process.root != root.root.string()) continue;
      const std::string cmdline =
          read_file_if_there("/proc/" + std::to_string(process.pid) + "/cmdline").value_or("");
      if (cmdline.find(std::string("--list") + '\0' + list + '\0') == std::string::npos) continue;
      signal_process(process, SIGTERM);
      asked = true;
    }
    watch.wait(std::chrono::milliseconds(100), -1);
  }
  wire::SetupStatus status = setup_status(root, list);
  // Asked before it could listen: it ended without a word, and that is ours to write.
  if (asked && status.state == SetupState::lost) {
    status.state = SetupState::cancelled;
    for (wire::SetupCommand& command : status.commands) {
      if (command.state == SetupState::succeeded) continue;
      command.state = SetupState::cancelled;
      break;
    }
    write_status(root, status);
  }
  return status;
}

void forget_setup(const paths::NodeRoot& root, const std::string& list) {
  if (setup_status(root, list).state == SetupState::running) cancel_setup(root, list);
  auto status = read_status(root, list);
  if (!status) return;
  status->commands.clear();
  status->state = SetupState::none;
  write_status(root, *status);
}

}  // namespace dtrain::session

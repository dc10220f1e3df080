#include "agent/session/setup_run.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "agent/node/config.hpp"
#include "agent/session/host.hpp"
#include "agent/session/setup.hpp"
#include "agent/session/setup_files.hpp"
#include "agent/session/shell.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"

namespace dtrain::session {
namespace {

using wire::SetupState;

constexpr std::chrono::milliseconds kGrace{5000};
constexpr std::chrono::milliseconds kSweepLimit{5000};
constexpr std::size_t kTailBytes = std::size_t{64} << 10;

std::int64_t now_ms() {
  return to_millis(std::chrono::system_clock::now());
}

class Run {
 public:
  Run(const paths::NodeRoot& root, const std::string& list)
      : root_(root),
        order_(read_order(root, list)),
        // Commands write to it too: every write goes to its end.
        log_(open_file(root.setup_log(list), O_WRONLY | O_APPEND | O_CREAT)) {
    auto status = read_status(root, list);
    if (!status) throw Error(ErrorCode::invalid, "there is nothing to run");
    status_ = *status;
    sigemptyset(&signals_);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&signals_, number);
    ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }

  int run() {
    SetupState outcome = SetupState::succeeded;
    for (auto i = static_cast<std::size_t>(status_.first); i < status_.commands.size(); ++i) {
      wire::SetupCommand& command = status_.commands[i];
      command.state = SetupState::running;
      command.began_ms = now_ms();
      write_status(root_, status_);
      const off_t from = say("$ " + command.command + "\n");
      command.exit_code = execute(command.command).shell_code();
      command.ended_ms = now_ms();
      command.state = cancelled_               ? SetupState::cancelled
                      : command.exit_code != 0 ? SetupState::failed
                                               : SetupState::succeeded;
      if (command.state == SetupState::succeeded) continue;
      outcome = command.state;
      status_.tail = last_lines(output_since(from), wire::kTailLines);
      break;
    }
    status_.state = outcome;
    write_status(root_, status_);
    return outcome == SetupState::succeeded ? 0 : 1;
  }

  // Nobody reads our stderr: what goes wrong here is said where the commands' output is.
  void fail(const std::string& why) {
    say("dtrain: " + why + "\n");
    status_.state = SetupState::failed;
    status_.tail = {why};
    write_status(root_, status_);
  }

 private:
  // Gives where the log goes on.
  off_t say(const std::string& text) {
    write_all(log_.get(), text);
    struct stat status {};
    return ::fstat(log_.get(), &status) == 0 ? status.st_size : 0;
  }

  std::string output_since(off_t from) {
    const UniqueFd log = open_file(root_.setup_log(status_.list), O_RDONLY);
    struct stat status {};
    if (::fstat(log.get(), &status) != 0) return {};
    const auto most = static_cast<off_t>(kTailBytes);
    const off_t begin = std::max(from, status.st_size - most);
    std::string bytes(static_cast<std::size_t>(std::max<off_t>(0, status.st_size - begin)), '\0');
    const ssize_t got = ::pread(log.get(), bytes.data(), bytes.size(), begin);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(0, got)));
    return bytes;
  }

  ProcessExit execute(const std::string& command) {
    ShellCommand shell;
    shell.command = command;
    shell.home = home_folder();
    shell.began = root_.setup() / (status_.list + ".began");
    std::map<std::string, std::string> env = order_.env;
    env[kSetupToken] = order_.token;
    env[kSetupMark] = root_.root.string();
    shell.env = shell_environment(node::login_environment(root_), env);
    ::unlink(shell.began.c_str());
    ProcessExit exit = attend(shell_spawn(shell));
    if (::unlink(shell.began.c_str()) != 0 && !cancelled_) {
      say("dtrain: the profile ended the shell (" + exit.str() +
          ") before the command began: it runs without the profile\n");
      exit = attend(bare_shell_spawn(shell));
      ::unlink(shell.began.c_str());
    }
    return exit;
  }

  ProcessExit attend(SpawnOptions options) {
    options.stdout_fd = log_.get();
    options.new_session = true;
    options.death_signal = SIGKILL;
    const pid_t pid = spawn(options);
    while (true) {
      if (const auto exit = try_wait(pid)) return *exit;
      if (const int number = ::sigwaitinfo(&signals_, nullptr);
          number == SIGTERM || number == SIGINT) {
        cancelled_ = true;
        return end(pid);
      }
    }
  }

  // With all that it started and that did not hide its environment.
  ProcessExit end(pid_t pid) {
    const auto until = std::chrono::steady_clock::now() + kGrace;
    std::optional<ProcessExit> exit;
    // Again and again: an interactive bash ignores SIGTERM, and goes on to what it starts next.
    while (!(exit = try_wait(pid)) && std::chrono::steady_clock::now() < until) {
      for (const pid_t each : find_by_environment(kSetupToken, order_.token)) {
        ::kill(each, SIGTERM);
      }
      const timespec pause{0, 50'000'000};
      ::sigtimedwait(&signals_, nullptr, &pause);
    }
    if (!exit) ::kill(pid, SIGKILL);
    sweep(kSetupToken, order_.token, kSweepLimit);
    return exit ? *exit : wait(pid);
  }

  paths::NodeRoot root_;
  SetupOrder order_;
  UniqueFd log_;
  wire::SetupStatus status_;
  sigset_t signals_{};
  bool cancelled_ = false;
};

}  // namespace

int setup_main(const paths::NodeRoot& root, const std::string& list) {
  check_list_name(list);
  // The lock came with the start; it must not go on to the commands.
  if (::fcntl(kLockFd, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(ErrorCode::usage, "only a session starts this");
  }
  for (const int number : {SIGPIPE, SIGHUP, SIGXFSZ}) ::signal(number, SIG_IGN);
  Run run(root, list);
  try {
    return run.run();
  } catch (const Error& error) {
    run.fail(error.what());
    return 1;
  }
}

}  // namespace dtrain::session

#include "trainer/launch/command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <sstream>

#include "trainer/core/files.hpp"

extern char** environ;

namespace dtrain::train {
namespace {

// Starts it; `out` becomes its stdout, with an empty stdin, if it is not -1.
pid_t start(const std::filesystem::path& program, const std::vector<std::string>& words, int out) {
  std::vector<std::string> arguments{program.string()};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& word : arguments) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  if (out != -1) {
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  }
  // It is to be told of Ctrl-C, whatever this process does with it and whatever it blocks.
  sigset_t interrupt;
  sigset_t none;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &interrupt);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int failed =
      ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw errno_error("cannot start " + program.string(), failed);
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw errno_error("cannot wait for dtrain", errno);
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// An error's message; of one with several problems, each of theirs.
std::string message_of(const nlohmann::json& error) {
  std::string message;
  const auto problems = error.find("problems");
  if (problems != error.end() && problems->is_array()) {
    for (const nlohmann::json& problem : *problems) {
      if (problem.is_object()) message += (message.empty() ? "" : "\n") + message_of(problem);
    }
  }
  return message.empty() ? text(error, "message") : message;
}

CommandError error_of(const nlohmann::json& error) {
  std::string message = message_of(error);
  if (const std::string hint = text(error, "hint"); !hint.empty()) message += "\n  " + hint;
  return {text(error, "code"), message};
}

// Whom the signals of an earlier handler are passed on to (0: nobody yet, or no more), and which
// came.
std::atomic<pid_t> g_child{0};
std::atomic<bool> g_came[NSIG];
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void pass_on(int signal) {
  const int before = errno;
  g_came[signal] = true;
  if (const pid_t child = g_child; child > 0) ::kill(child, signal);
  errno = before;
}

// While it lives, SIGINT does not end this process, and SIGTERM and SIGHUP go to the child. After
// it those two come to this process as they would have: once nobody is left behind.
class ForChild {
 public:
  ForChild() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGINT, &ignore, &interrupt_);
    struct sigaction pass {};
    pass.sa_handler = pass_on;
    pass.sa_flags = SA_RESTART;
    for (Passed& each : passed_) {
      ::sigaction(each.signal, nullptr, &each.before);
      // One that is ignored, as SIGHUP by nohup, stays so.
      each.taken = (each.before.sa_flags & SA_SIGINFO) != 0 || each.before.sa_handler != SIG_IGN;
      if (each.taken) ::sigaction(each.signal, &pass, nullptr);
    }
  }
  ~ForChild() {
    g_child = 0;
    for (const Passed& each : passed_) {
      if (each.taken) ::sigaction(each.signal, &each.before, nullptr);
    }
    ::sigaction(SIGINT, &interrupt_, nullptr);
    for (const Passed& each : passed_) {
      if (g_came[each.signal].exchange(false)) ::raise(each.signal);
    }
  }
  ForChild(const ForChild&) = delete;
  ForChild& operator=(const ForChild&) = delete;

  void is(pid_t child) {
    g_child = child;
    for (const Passed& each : passed_) {  // before there was one
      if (g_came[each.signal]) ::kill(child, each.signal);
    }
  }
  // Its end, while its pid is still its own.
  void ended() { g_child = 0; }

 private:
  struct Passed {
    int signal;
    struct sigaction before {};
    bool taken = false;
  };
  Passed passed_[2] = {{SIGTERM}, {SIGHUP}};
  struct sigaction interrupt_ {};
};

}  // namespace

nlohmann::json member(const nlohmann::json& of, const char* key) {
  return of.is_object() ? of.value(key, nlohmann::json()) : nlohmann::json();
}

std::string text(const nlohmann::json& of, const char* key) {
  const nlohmann::json value = member(of, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

DtrainCommand DtrainCommand::find(const Lookup& lookup) {
  const auto runs = [](const std::filesystem::path& path) {
    std::error_code unreadable;
    return std::filesystem::is_regular_file(path, unreadable) && ::access(path.c_str(), X_OK) == 0;
  };
  const auto in_path = [&](const std::string& name) -> std::optional<DtrainCommand> {
    std::istringstream folders(lookup("PATH").value_or(""));
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::filesystem::path path = std::filesystem::path(folder) / name;
      if (!folder.empty() && runs(path)) return DtrainCommand(std::filesystem::absolute(path));
    }
    return std::nullopt;
  };
  if (const auto named = lookup("DTRAIN"); named && !named->empty()) {
    if (named->find('/') == std::string::npos) {
      if (auto found = in_path(*named)) return *found;
    } else if (runs(*named)) {
      return DtrainCommand(std::filesystem::absolute(*named));
    }
    throw Error("DTRAIN=" + *named + ": no such program");
  }
  if (auto found = in_path("dtrain")) return *found;
  throw Error(
      "the command dtrain is not in PATH: install it, say where it is by DTRAIN=/path/to/dtrain, "
      "or "
      "start the ranks yourself: torchrun --no-python --nproc-per-node N THIS_PROGRAM");
}

nlohmann::json DtrainCommand::ask(const std::vector<std::string>& words) const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  const pid_t pid = start(program_, words, to.get());
  to.reset();
  std::string out;
  char part[4096];
  for (;;) {
    const ssize_t got = ::read(from.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out.append(part, static_cast<std::size_t>(got));
  }
  const int code = wait_for(pid);
  nlohmann::json last;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json document = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (document.is_structured()) last = std::move(document);
  }
  if (last.is_object() && last.contains("error") && last["error"].is_object() &&
      last["error"].contains("code")) {
    throw error_of(last["error"]);
  }
  if (last.is_null()) {
    throw Error(program_.string() + " " + (words.empty() ? "" : words.front()) +
                ": no answer, exit code " + std::to_string(code));
  }
  return last;
}

int DtrainCommand::show(const std::vector<std::string>& words) const {
  ForChild held;
  const pid_t pid = start(program_, words, -1);
  held.is(pid);
  siginfo_t info;
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  held.ended();
  return wait_for(pid);
}

}  // namespace dtrain::train

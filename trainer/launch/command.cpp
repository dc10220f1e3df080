#include "trainer/launch/command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
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
  // It is to be told of Ctrl-C, whatever this process does with it.
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::posix_spawnattr_setsigdefault(&attributes, &interrupt);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
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

std::string text(const nlohmann::json& of, const char* key) {
  const auto found = of.find(key);
  return found != of.end() && found->is_string() ? found->get<std::string>() : std::string();
}

CommandError error_of(const nlohmann::json& error) {
  std::string message = text(error, "message");
  if (const std::string hint = text(error, "hint"); !hint.empty()) message += "\n  " + hint;
  return {text(error, "code"), message};
}

// SIGINT does not end this process while it lives.
class NoInterrupt {
 public:
  NoInterrupt() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGINT, &ignore, &before_);
  }
  ~NoInterrupt() { ::sigaction(SIGINT, &before_, nullptr); }
  NoInterrupt(const NoInterrupt&) = delete;
  NoInterrupt& operator=(const NoInterrupt&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace

DtrainCommand DtrainCommand::find(const Lookup& lookup) {
  const auto runs = [](const std::filesystem::path& path) {
    return std::filesystem::is_regular_file(path) && ::access(path.c_str(), X_OK) == 0;
  };
  if (const auto named = lookup("DTRAIN"); named && !named->empty()) {
    if (runs(*named)) return DtrainCommand(std::filesystem::absolute(*named));
    throw Error("DTRAIN=" + *named + ": no such program");
  }
  std::istringstream folders(lookup("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && runs(std::filesystem::path(folder) / "dtrain")) {
      return DtrainCommand(std::filesystem::absolute(std::filesystem::path(folder) / "dtrain"));
    }
  }
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
  const NoInterrupt held;
  return wait_for(start(program_, words, -1));
}

}  // namespace dtrain::train

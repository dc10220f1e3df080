#include "agent/watch/contained.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::watch {

namespace {

std::vector<pid_t> living_children() {
  std::vector<pid_t> children;
  const std::string self = std::to_string(::getpid());
  if (const auto list = read_file_if_there("/proc/self/task/" + self + "/children")) {
    for (const std::string& word : split(*list, ' ')) {
      if (const auto pid = number_from<pid_t>(word)) children.push_back(*pid);
    }
    return children;
  }
  // A kernel that does not list them.
  for (const pid_t pid : other_pids()) {
    const auto stat = process_stat(pid);
    if (stat && stat->parent == ::getpid() && !stat->ended()) children.push_back(pid);
  }
  return children;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

std::string to_environment(const Contained& contained) {
  return std::to_string(contained.limit.count()) + " " + std::to_string(contained.told) + " " +
         std::to_string(contained.why);
}

std::optional<Contained> from_environment() {
  const char* text = std::getenv(kContained);
  if (text == nullptr) return std::nullopt;
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() != 3) return std::nullopt;
  const auto limit = number_from<long>(words[0]);
  const auto told = number_from<int>(words[1]);
  const auto why = number_from<int>(words[2]);
  if (!limit || !told || !why) return std::nullopt;
  return Contained{Milliseconds(*limit), *told, *why};
}

int make_why() {
  return ::memfd_create("dtrain-why", MFD_CLOEXEC);
}

void write_why(int why, const std::string& reason) {
  [[maybe_unused]] const ssize_t n = ::pwrite(why, reason.data(), reason.size(), 0);
}

std::string read_why(int why) {
  char text[4096];
  const ssize_t n = ::pread(why, text, sizeof text, 0);
  return {text, static_cast<std::size_t>(n < 0 ? 0 : n)};
}

void say(const std::string& line) {
  const std::string text = printable(line, false).substr(0, PIPE_BUF - 1) + "\n";
  // A pipe that is ready takes PIPE_BUF bytes whole: a reader that stands still stops nobody.
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
}

bool Leftovers::end(bool kill) {
  if (!has_children()) return false;
  for (const pid_t pid : living_children()) {
    if (kill) {
      ::kill(pid, SIGKILL);
    } else if (told_.insert(pid).second) {
      ::kill(pid, SIGTERM);
    }
  }
  return true;
}

}  // namespace dtrain::watch

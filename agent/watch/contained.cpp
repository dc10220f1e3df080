#include "agent/watch/contained.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "launcher/core/number.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::watch {

using Clock = std::chrono::steady_clock;

namespace {

constexpr Milliseconds kLookForChildren{10};

std::vector<pid_t> living_children() {
  std::vector<pid_t> children;
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
  return std::to_string(contained.limit.count()) + " " + std::to_string(contained.told);
}

std::optional<Contained> from_environment() {
  const char* text = std::getenv(kContained);
  if (text == nullptr) return std::nullopt;
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() != 2) return std::nullopt;
  const auto limit = number_from<long>(words[0]);
  const auto told = number_from<int>(words[1]);
  if (!limit || !told) return std::nullopt;
  return Contained{Milliseconds(*limit), *told};
}

void say(const std::string& line) {
  const std::string text = printable(line, false).substr(0, PIPE_BUF - 1) + "\n";
  // A pipe that is ready takes PIPE_BUF bytes whole: a reader that stands still stops nobody.
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
}

bool end_descendants(Milliseconds grace, Milliseconds limit) {
  const auto begun = Clock::now();
  std::set<pid_t> told;
  while (true) {
    while (try_wait_any()) {
    }
    if (!has_children()) return true;
    const auto passed = Clock::now() - begun;
    if (passed >= limit) return false;
    for (const pid_t pid : living_children()) {
      if (passed >= grace) {
        ::kill(pid, SIGKILL);
      } else if (told.insert(pid).second) {
        ::kill(pid, SIGTERM);
      }
    }
    std::this_thread::sleep_for(kLookForChildren);
  }
}

}  // namespace dtrain::watch

#include "agent/supervise/attempt_processes.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>

#include "launcher/core/process_table.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain::supervise {
namespace {

struct Stat {
  char state = '?';
  pid_t parent = 0;
  long threads = 0;

  // A process whose first thread has ended while others run is shown as Z too.
  bool ended() const { return state == 'X' || (state == 'Z' && threads <= 1); }
};

// Fields 3, 4 and 20 of /proc/PID/stat; false when the process is gone.
bool read_stat(pid_t pid, Stat& stat) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const UniqueFd fd(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  std::array<char, 512> text{};
  const ssize_t got = ::read(fd.get(), text.data(), text.size() - 1);
  if (got <= 0) return false;
  // The name may hold anything, parentheses too; the last one ends it.
  const char* name_end = std::strrchr(text.data(), ')');
  return name_end != nullptr &&
         std::sscanf(name_end,
                     ") %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld",
                     &stat.state, &stat.parent, &stat.threads) == 3;
}

}  // namespace

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : other_pids()) {
    Stat stat;
    if (read_stat(pid, stat) && !stat.ended()) children.emplace(stat.parent, pid);
  }
  std::vector<pid_t> found{::getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto child = first; child != last; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> attempt_processes(const std::string& token) {
  std::vector<pid_t> found = descendants();
  for (const pid_t pid : find_by_environment("DTRAIN_ATTEMPT_TOKEN", token)) {
    if (std::find(found.begin(), found.end(), pid) == found.end()) found.push_back(pid);
  }
  return found;
}

void terminate(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    ::kill(pid, SIGTERM);
    ::kill(pid, SIGCONT);
  }
}

void kill_now(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) ::kill(pid, SIGKILL);
}

}  // namespace dtrain::supervise

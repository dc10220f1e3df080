#include "agent/supervise/attempt_processes.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "launcher/core/process_table.hpp"

namespace dtrain::supervise {

std::vector<pid_t> descendants(pid_t ancestor) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : other_pids()) {
    const auto stat = process_stat(pid);
    if (stat && !stat->ended()) children.emplace(stat->parent, pid);
  }
  std::vector<pid_t> found{ancestor};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto child = first; child != last; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> attempt_processes(const std::string& token) {
  std::vector<pid_t> found = descendants(::getpid());
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

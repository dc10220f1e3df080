#include "launcher/core/process_table.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"

namespace dtrain {
namespace {

// Empty when it is gone, or another user's.
std::string read_quietly(pid_t pid, const char* name) {
  try {
    return read_file("/proc/" + std::to_string(pid) + "/" + name, std::size_t{4} << 20);
  } catch (const Error&) {
    return {};
  }
}

std::optional<ProcessStat> stat_in(const std::string& folder) {
  std::string text;
  try {
    text = read_file(folder + "/stat", 65536);
  } catch (const Error&) {
    return std::nullopt;
  }
  // The name may hold anything, parentheses too; the last one ends it.
  const std::size_t name = text.find('(');
  const std::size_t name_end = text.rfind(')');
  if (name == std::string::npos || name_end == std::string::npos) return std::nullopt;
  ProcessStat stat;
  stat.name = text.substr(name + 1, name_end - name - 1);
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  const int found =
      std::sscanf(text.c_str() + name_end,
                  ") %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %" SCNu64
                  " %*s %*s %*s %*s %ld %*s %" SCNu64,
                  &stat.state, &stat.parent, &user, &system, &stat.threads, &stat.start);
  if (found != 6) return std::nullopt;
  static const auto ticks = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
  stat.cpu = std::chrono::milliseconds((user + system) * 1000 / ticks);
  return stat;
}

// Pids by environment; whether there are some that may have it in a moment.
std::pair<std::vector<pid_t>, bool> look_for(const std::string& entry) {
  std::vector<pid_t> found;
  bool starting = false;
  for (const pid_t pid : other_pids()) {
    const std::optional<std::string> env = environment_of(pid);
    if (!env) {
      starting = true;
      continue;
    }
    for (std::size_t at = env->find(entry); at != std::string::npos;
         at = env->find(entry, at + 1)) {
      const std::size_t end = at + entry.size();
      if ((at == 0 || (*env)[at - 1] == '\0') && (end == env->size() || (*env)[end] == '\0')) {
        found.push_back(pid);
        break;
      }
    }
  }
  return {std::move(found), starting};
}

}  // namespace

std::vector<pid_t> other_pids() {
  std::vector<pid_t> pids;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename().string();
    const auto pid = number_from<pid_t>(name);
    if (pid && *pid != ::getpid()) pids.push_back(*pid);
  }
  return pids;
}

std::optional<ProcessStat> process_stat(pid_t pid) {
  return stat_in("/proc/" + std::to_string(pid));
}

std::optional<ProcessStat> thread_stat(pid_t pid, pid_t tid) {
  return stat_in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid));
}

std::optional<std::uint64_t> start_time(pid_t pid) {
  const auto stat = process_stat(pid);
  if (!stat || stat->state == 'Z') return std::nullopt;
  return stat->start;
}

std::string boot_id() {
  std::string id = read_file("/proc/sys/kernel/random/boot_id", 4096);
  while (!id.empty() && (id.back() == '\n' || id.back() == ' ')) id.pop_back();
  return id;
}

std::string arguments_of(pid_t pid) {
  return read_quietly(pid, "cmdline");
}

std::optional<std::string> environment_of(pid_t pid) {
  std::string env = read_quietly(pid, "environ");
  if (!env.empty()) return env;
  if (!arguments_of(pid).empty()) return read_quietly(pid, "environ");  // exec has ended since
  std::error_code none;
  const bool has_program = !fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", none).empty();
  return has_program ? std::nullopt : std::optional<std::string>("");
}

std::vector<pid_t> find_by_environment(const std::string& name, const std::string& value) {
  return look_for(name + "=" + value).first;
}

std::vector<pid_t> sweep(const std::string& name, const std::string& value,
                         std::chrono::milliseconds deadline) {
  const auto begun = std::chrono::steady_clock::now();
  while (true) {
    const auto [left, starting] = look_for(name + "=" + value);
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    const auto waited = std::chrono::steady_clock::now() - begun;
    if ((left.empty() && !(starting && waited < kExecLimit)) || waited >= deadline) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace dtrain

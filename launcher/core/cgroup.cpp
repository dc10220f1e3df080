#include "launcher/core/cgroup.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/mounts.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cgroup {
namespace {

std::optional<std::string> own_path(const fs::path& proc) {
  const auto text = read_file_if_there(proc / "cgroup", 65536);
  for (const std::string& line : split(text.value_or(""), '\n')) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return std::nullopt;
}

std::vector<fs::path> below(const fs::path& group) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(group, failed)) {
    std::error_code none;
    if (entry.is_directory(none) && !entry.is_symlink(none)) found.push_back(entry.path());
  }
  return found;
}

void gather(const fs::path& group, std::vector<pid_t>& found) {
  const auto text = read_file_if_there(group / "cgroup.procs");
  for (const std::string& line : split(text.value_or(""), '\n')) {
    const pid_t pid = std::atoi(line.c_str());
    // 0 is one that this process's namespace does not see.
    if (pid > 0) found.push_back(pid);
  }
  for (const fs::path& child : below(group)) gather(child, found);
}

// What keeps it; 0: nothing has.
int remove_once(const fs::path& group) {
  for (const fs::path& child : below(group)) {
    if (const int error = remove_once(child); error != 0) return error;
  }
  return ::rmdir(group.c_str()) == 0 || errno == ENOENT ? 0 : errno;
}

}  // namespace

std::optional<fs::path> own(const fs::path& proc) {
  const auto path = own_path(proc);
  if (!path || path->starts_with("/..")) return std::nullopt;
  for (const Mount& mount : mounts(proc)) {
    if (mount.type != "cgroup2") continue;
    if (mount.root == "/") return fs::path(mount.point + (*path == "/" ? "" : *path));
    if (*path == mount.root) return fs::path(mount.point);
    if (path->starts_with(mount.root + "/")) {
      return fs::path(mount.point + path->substr(mount.root.size()));
    }
  }
  return std::nullopt;
}

bool is_root(const fs::path& group) {
  std::error_code failed;
  return !fs::exists(group / "cgroup.type", failed) && !failed;
}

bool lists(const fs::path& file, std::string_view word) {
  std::string text = read_file_if_there(file, 65536).value_or("");
  std::replace(text.begin(), text.end(), '\n', ' ');
  const std::vector<std::string> words = split(text, ' ');
  return std::find(words.begin(), words.end(), word) != words.end();
}

void write(const fs::path& file, std::string_view text) {
  const UniqueFd fd = open_file(file, O_WRONLY);
  if (::write(fd.get(), text.data(), text.size()) < 0) {
    throw errno_error("cannot write " + std::string(text) + " to " + file.string(), errno);
  }
}

std::vector<pid_t> processes(const fs::path& group) {
  std::vector<pid_t> found;
  try {
    gather(group, found);
  } catch (const Error&) {
    // Its files refuse to be read once it is gone.
    std::error_code failed;
    if (fs::exists(group, failed) || failed) throw;
  }
  return found;
}

void kill(const fs::path& group) {
  try {
    cgroup::write(group / "cgroup.kill", "1");
    return;
  } catch (const Error&) {
    // An older kernel, or it is gone.
  }
  for (const pid_t pid : processes(group)) {
    if (pid != ::getpid()) ::kill(pid, SIGKILL);
  }
}

bool remove(const fs::path& group, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (const int error = remove_once(group)) {
    if (error != EBUSY || std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<pid_t> clear(const fs::path& group, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (true) {
    cgroup::kill(group);
    std::vector<pid_t> left = processes(group);
    if (left.empty()) break;
    if (std::chrono::steady_clock::now() >= until) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!cgroup::remove(group, limit)) {
    log::warn("a cgroup is held by something and stays", {{"cgroup", group.string()}});
  }
  return {};
}

std::optional<Memory> memory(const fs::path& group) {
  const auto events = read_file_if_there(group / "memory.events", 65536);
  if (!events) return std::nullopt;
  Memory found;
  for (const std::string& line : split(*events, '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    if (words.size() != 2) continue;
    const std::uint64_t count = std::strtoull(words[1].c_str(), nullptr, 10);
    if (words[0] == "oom") found.limit_reached = count;
    if (words[0] == "oom_kill") found.killed = count;
  }
  if (const auto peak = read_file_if_there(group / "memory.peak", 4096)) {
    found.peak = std::strtoull(peak->c_str(), nullptr, 10);
  }
  return found;
}

}  // namespace dtrain::cgroup

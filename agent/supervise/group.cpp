#include "agent/supervise/group.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/supervise/scope.hpp"
#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/attempt.hpp"

namespace dtrain::supervise {
namespace {

constexpr const char* kController = "memory";

// Unlike all other attempts' on this machine, and at most 255 bytes.
std::string group_name(const wire::AttemptSpec& spec) {
  return "dtrain-" + spec.cluster.str() + "-" + spec.node.str() + "-" + spec.job.str() + "." +
         std::to_string(spec.attempt);
}

void make_group(const fs::path& group) {
  if (::mkdir(group.c_str(), 0755) != 0 && errno != EEXIST) {
    throw errno_error("cannot make the group " + group.string(), errno);
  }
}

// A process that does nothing else enters the group: only that shows that others will.
void try_to_enter(const fs::path& group) {
  const UniqueFd procs = open_file(group / "cgroup.procs", O_WRONLY);
  const pid_t pid = ::fork();
  if (pid < 0) throw errno_error("cannot make a process", errno);
  if (pid == 0) ::_exit(::write(procs.get(), "0", 1) == 1 ? 0 : errno);
  const ProcessExit exit = wait(pid);
  if (!exit.ok()) throw errno_error("cannot enter the group " + group.string(), exit.code);
}

// Why no groups can be made in this one; empty: they can.
std::string why_not_ours(const fs::path& group) {
  for (const fs::path& path : {group, group / "cgroup.procs"}) {
    if (::access(path.c_str(), W_OK) != 0) return path.string() + ": " + std::strerror(errno);
  }
  return {};
}

}  // namespace

AttemptGroup::AttemptGroup(const GroupPlaces& places, const wire::AttemptSpec& spec) {
  try {
    auto own = cgroup::own(places.proc);
    if (!own) {
      why_ = "no cgroup v2 is mounted here";
      return;
    }
    no_scope_ =
        enter_scope(group_name(spec),
                    "dtrain attempt " + std::to_string(spec.attempt) + " of " + spec.job.str(),
                    *own, places.proc, places.root);
    if (no_scope_.empty()) own = cgroup::own(places.proc);
    const std::string not_ours = why_not_ours(own.value());
    if (not_ours.empty()) {
      base_ = *own;
      folder_ = base_ / group_name(spec);
    } else {
      why_ = "no cgroup v2 is delegated to this user: " + no_scope_ + ", and " + not_ours;
    }
  } catch (const std::exception& error) {
    why_ = std::string("its cgroup cannot be found: ") + error.what();
  }
}

void AttemptGroup::give_up(const std::string& why) {
  cgroup::remove(folder_, std::chrono::milliseconds(0));
  folder_.clear();
  why_ = why;
}

std::string AttemptGroup::enable_memory(const fs::path& group) const {
  if (cgroup::lists(group / "cgroup.subtree_control", kController)) return {};
  if (!cgroup::lists(group / "cgroup.controllers", kController)) {
    return "the memory controller of cgroup v2 is not delegated to " + group.string();
  }
  if (!cgroup::is_root(group) && cgroup::processes(group) == std::vector<pid_t>{::getpid()}) {
    make_group(group / "supervisor");
    cgroup::write(group / "supervisor" / "cgroup.procs", "0");
  }
  try {
    cgroup::write(group / "cgroup.subtree_control", std::string("+") + kController);
  } catch (const Error& error) {
    if (cgroup::is_root(group) || cgroup::processes(group).empty()) throw;
    return "other processes are in the cgroup " + group.string() + " too";
  }
  return {};
}

void AttemptGroup::make() {
  if (folder_.empty()) return;
  try {
    make_group(folder_);
  } catch (const Error& error) {
    give_up(error.what());
    return;
  }
  try {
    no_memory_ = enable_memory(base_);
    if (no_memory_.empty()) no_memory_ = enable_memory(folder_);
  } catch (const Error& error) {
    no_memory_ = error.what();
  }
  if (!no_memory_.empty() && !no_scope_.empty()) no_memory_ += "; " + no_scope_;
}

void AttemptGroup::limit_memory(const fs::path& group, std::uint64_t limit) {
  std::error_code none;
  // One that has lost a part of itself goes as a whole (Linux 4.19).
  if (fs::exists(group / "memory.oom.group", none)) {
    cgroup::write(group / "memory.oom.group", "1");
  }
  if (limit == 0) return;
  cgroup::write(group / "memory.max", std::to_string(limit));
  // Absent where the kernel counts no swap.
  if (fs::exists(group / "memory.swap.max", none)) cgroup::write(group / "memory.swap.max", "0");
}

UniqueFd AttemptGroup::entry(const std::string& part, std::uint64_t memory) {
  if (folder_.empty()) return {};
  const fs::path group = folder_ / part;
  try {
    make_group(group);
    if (!tried_) try_to_enter(group);
    tried_ = true;
  } catch (const Error& error) {
    if (tried_) throw;
    give_up(error.what());
    return {};
  }
  try {
    if (no_memory_.empty()) limit_memory(group, memory);
  } catch (const Error& error) {
    no_memory_ = error.what();
  }
  return open_file(group / "cgroup.procs", O_WRONLY);
}

std::vector<pid_t> AttemptGroup::processes() const {
  if (folder_.empty()) return {};
  try {
    return cgroup::processes(folder_);
  } catch (const Error& error) {
    log::warn("the attempt's cgroup cannot be read", {{"error", error.what()}});
    return {};
  }
}

void AttemptGroup::kill() const {
  if (folder_.empty()) return;
  try {
    cgroup::kill(folder_);
  } catch (const Error& error) {
    log::warn("the attempt's cgroup cannot be killed", {{"error", error.what()}});
  }
}

void AttemptGroup::remove(std::chrono::milliseconds limit) const {
  if (folder_.empty() || cgroup::remove(folder_, limit)) return;
  log::warn("the attempt's cgroup is held by something and stays", {{"cgroup", folder_.string()}});
}

std::string AttemptGroup::memory_end(const std::string& part, std::uint64_t limit) const {
  if (folder_.empty()) return {};
  std::optional<cgroup::Memory> memory;
  try {
    memory = cgroup::memory(folder_ / part);
  } catch (const Error& error) {
    log::warn("what its memory came to cannot be read", {{"error", error.what()}});
  }
  if (!memory || memory->killed == 0) return {};
  if (limit > 0 && memory->limit_reached > 0) {
    return std::string(wire::RankExited::kKilledForMemory) + "it used " +
           human_bytes(memory->peak.value_or(limit)) + " of " + human_bytes(limit);
  }
  return std::string(wire::RankExited::kKilledForMemory) +
         "its machine, or a limit that others set for it, had none left" +
         (memory->peak ? "; it used " + human_bytes(*memory->peak) : "");
}

std::vector<pid_t> clean_group(const fs::path& folder, const wire::AttemptSpec& spec,
                               std::chrono::milliseconds limit) {
  std::error_code failed;
  if (folder.filename() != group_name(spec) || !fs::exists(folder / "cgroup.procs", failed)) {
    return {};
  }
  return cgroup::clear(folder, limit);
}

}  // namespace dtrain::supervise

#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"

// Control groups of version 2: a group is a folder of the kernel's, its files are its switches
// (Linux, Documentation/admin-guide/cgroup-v2.rst). A process and all that it starts stay in their
// group until somebody with the right to do so writes them into another. Nothing here knows whose a
// group is: that is for the caller to say.
namespace dtrain {
struct SpawnOptions;
}

namespace dtrain::cgroup {

// The folder of this process's own group, where version 2 is mounted: alone, or beside version 1.
// Absent where it is not, or where the group is not below the mount (a container that was given
// another's). `proc` is /proc/self.
std::optional<fs::path> own(const fs::path& proc = "/proc/self");

// The kernel's own root group, which may hold processes beside groups with controllers. That of a
// cgroup namespace is not.
bool is_root(const fs::path& group);

// Whether `word` is in a file of words: cgroup.controllers, cgroup.subtree_control.
bool lists(const fs::path& file, std::string_view word);
// Writes to a file of a group that is there. Throws Error with the kernel's refusal.
void write(const fs::path& file, std::string_view text);

// spawn() of process.hpp into a group: the child enters it before its program starts, so that
// nothing escapes. `procs` is the group's cgroup.procs, open for writing; -1: the caller's own
// group.
pid_t spawn(const SpawnOptions& options, int procs);

// Processes of the group and of those below it; none when it is gone. Throws Error(io) when that
// cannot be read.
std::vector<pid_t> processes(const fs::path& group);

// SIGKILL to all of them: at one blow by cgroup.kill (Linux 5.14), else to each that is seen, which
// wants to be repeated until none is left. Never to this process.
void kill(const fs::path& group);

// Removes the group and those below it, for at most `limit`: a process that has just died holds its
// group for a moment. False when something still holds it; what is not there is removed.
bool remove(const fs::path& group, std::chrono::milliseconds limit);

// Both: kills what is in it until nothing is left, for at most `limit`, and removes it, for as long
// again. Returns what would not die.
std::vector<pid_t> clear(const fs::path& group, std::chrono::milliseconds limit);

// What its memory has come to, itself and those below it.
struct Memory {
  std::uint64_t limit_reached = 0;    // times that its own limit left an allocation nothing
  std::uint64_t killed = 0;           // processes of it killed for want of memory, whoever's
  std::optional<std::uint64_t> peak;  // bytes, of its life; absent before Linux 5.19
};
// Absent where the group has no memory controller.
std::optional<Memory> memory(const fs::path& group);

}  // namespace dtrain::cgroup

#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/attempt.hpp"

// The attempt's processes on this node in a control group of their own, where this process may make
// one. What leaves neither a parent nor the attempt's token behind is still in its group; `memory`
// of the job's resources is enforced there. Without a group everything goes by descent and token
// alone (attempt_processes.hpp), and nothing else changes.
//
//   BASE                          ours to make groups in
//     supervisor                  this process, where BASE is its alone
//     dtrain-CLUSTER-NODE-JOB.N   the attempt
//       setup, rank-R
//
// BASE is, the first that can be had:
// - a scope of this process's own that the service manager makes and delegates to it (scope.hpp).
// - the group that this process is in already, where that lets it make groups: as root without
//   systemd, or in a container that was given its groups. Nobody else's processes are moved: while
//   others are in that group too, as the other agents are, the kernel gives no controllers to those
//   below it ("no internal processes"), so the attempt is held and its memory is not limited. The
//   kernel's root group is exempt from that.
// Elsewhere (a login of a user who does not linger, most containers, hosts with version 1 alone)
// there is none.
//
// The supervisor makes the group, puts each process into it before its program starts, and removes
// it; after a supervisor's death the node agent does, who finds its path in supervise.json.
namespace dtrain::supervise {

struct GroupPlaces {
  fs::path proc = "/proc/self";
  fs::path root = "/";  // for systemd's folders and the kernel's log
};

class AttemptGroup {
 public:
  // None.
  AttemptGroup() = default;
  // Finds where it can be and makes nothing there yet; may move this process into a scope. Never
  // throws: where there is none, why() says why.
  AttemptGroup(const GroupPlaces& places, const wire::AttemptSpec& spec);

  // Empty: there is none.
  const fs::path& folder() const noexcept { return folder_; }
  const std::string& why() const noexcept { return why_; }
  // Why memory is not limited in it; empty: it is.
  const std::string& why_no_memory() const noexcept { return folder_.empty() ? why_ : no_memory_; }

  // Makes it. Where that fails there is none from then on.
  void make();
  // For cgroup::spawn(): the way into the group `part` of this one, which may use `memory` bytes
  // (0: no limit) and no swap beside. Empty: there is none, also from now on where no process can
  // enter it. Throws Error once others are in it.
  UniqueFd entry(const std::string& part, std::uint64_t memory);

  std::vector<pid_t> processes() const;
  void kill() const;
  // What is still in it keeps it, at most for `limit`.
  void remove(std::chrono::milliseconds limit) const;

  // "killed for memory: …", where a process of `part` was; else empty.
  std::string memory_end(const std::string& part, std::uint64_t limit) const;

 private:
  void give_up(const std::string& why);
  // Gives the groups below `group` the memory controller; says why if it cannot.
  std::string enable_memory(const fs::path& group) const;
  void limit_memory(const fs::path& group, std::uint64_t limit);

  fs::path base_;
  fs::path folder_;
  std::string no_scope_;  // why systemd gave none
  std::string why_;
  std::string no_memory_;
  bool tried_ = false;  // a process could be put into it
};

// What another supervisor's record says of its group, after its death: kills what is in it, for at
// most `limit`, and removes it. Returns what would not die. `folder` is not believed: a name that
// is not this attempt's, or a place that is no group, is left alone.
std::vector<pid_t> clean_group(const fs::path& folder, const wire::AttemptSpec& spec,
                               std::chrono::milliseconds limit);

}  // namespace dtrain::supervise

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/node.hpp"

// What `dtrain doctor` looks at alike on the head's and on every node's machine. It takes its time,
// so it is for a thread of its own. What judges is apart from what looks, so that tests can judge
// what no machine of theirs has.
namespace dtrain::link {

using Finding = wire::DoctorReport::Finding;

struct Findings {
  std::vector<Finding> found;
  std::vector<std::string> looked;  // what is well, a sentence each

  // Both live until the next is added.
  Finding& problem(std::string kind, std::string what, std::string hint = {});
  Finding& note(std::string kind, std::string what, std::string hint = {});
  // One kind of look: what it throws is a problem, since nobody knows then what is there.
  void look(const std::string& kind, const std::function<void()>& how);
};

// It can be put right by `how`, which is called with `fix`; what that throws stands in the finding.
void fixable_by(Finding& finding, bool fix, const std::function<void()>& how);

struct Disk {
  std::string of;    // "/n (the node's folder)"
  std::string hint;  // how it gets room
  std::uint64_t total = 0;
  std::uint64_t free = 0;   // bytes that we may have
  std::uint64_t files = 0;  // that it can hold at all; 0: as many as there is room for
  std::uint64_t files_free = 0;
  bool read_only = false;
  dev_t device = 0;
};
// Absent where nothing is there. Throws Error.
std::optional<Disk> look_at_disk(const fs::path& path, const std::string& for_what,
                                 const std::string& hint);
// A problem below 1 % or, of a small one, 5 %, but never above 10 GiB: kilobytes of a full disk
// cost output and checkpoints. A note below 5 %, but never above 50 GiB. Several of
// one device are one.
void judge_disks(std::vector<Disk> disks, Findings& findings);
// So little that what could be given back is worth a word.
bool runs_low(const Disk& disk);
// Where that is so: what `prune` would give back, which `collect` says or, with false, does.
void judge_content(const Disk& disk, const std::function<wire::Collected(bool dry_run)>& collect,
                   bool fix, Findings& findings);

// Files and folders that are this user's alone; those that are not there are passed over.
void check_private(const std::vector<fs::path>& paths, bool fix, Findings& findings);

// A certificate that should have been made anew by itself three days ago.
void judge_certificate(const std::string& of, const std::string& certificate_pem, WallTime now,
                       Findings& findings);

// That whoever starts this agent again when it dies is there; looked for as long as one that has
// died takes to be back.
void check_watch(Findings& findings);

// What lies in storage of a checkpoint that was never committed.
struct Unfinished {
  JobId job;
  fs::path path;
  std::uint64_t bytes = 0;
  bool committed = false;  // the same step lies beside it, whole
};
// Of one job that is over; `storage` is its own. Throws Error.
std::vector<Unfinished> unfinished_checkpoints(const JobId& job, const fs::path& storage,
                                               WallTime now);
// Of many jobs. Only what is of a committed step is ever removed: the rest may be all that there
// is.
void judge_unfinished(const std::vector<Unfinished>& unfinished, bool fix, Findings& findings);

}  // namespace dtrain::link

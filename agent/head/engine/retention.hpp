#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "agent/head/store/rows.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/spec/storage_spec.hpp"

// What is kept and what goes: pure. docs/checkpoint_format.md has the rules for checkpoints.
namespace dtrain::head {

// The value of a metric: a number, "inf" or "-inf". Absent: not there, or not comparable (nan).
std::optional<double> score_of(const nlohmann::json& metrics, const std::string& attribute);

// The best by the score attribute, or the newest without one; ties go to the newer. Absent when
// there is none.
std::optional<CheckpointRow> best_checkpoint(const std::vector<CheckpointRow>& checkpoints,
                                             const CheckpointSpec& spec);

// Numbers of those to delete, ascending. The newest is always kept, and so are those in use: that
// which ranks that live began from, and those that other jobs are to start from.
std::vector<int> checkpoints_to_delete(const std::vector<CheckpointRow>& checkpoints,
                                       const CheckpointSpec& spec, const std::set<int>& in_use);

struct EndedJob {
  JobId job;
  Monotonic ended;          // Moments::of(): a date that is set makes no job old
  std::uint64_t bytes = 0;  // of its logs and checkpoints in the head's own folders
  bool held = false;        // another job needs it: it counts, and stays
};
struct Forgetting {
  JobId job;
  std::string reason;

  bool operator==(const Forgetting&) const = default;
};
// What the user's own settings say is to go: nothing without them. The oldest goes first.
std::vector<Forgetting> jobs_to_forget(std::vector<EndedJob> jobs, Monotonic now,
                                       const StorageSpec& settings);

// Of the file system that the head's root lies on, as it was measured last.
struct DiskUse {
  std::uint64_t total = 0;       // bytes; 0: not measured
  std::uint64_t free = 0;        // bytes that this user can have
  std::uint64_t ended_jobs = 0;  // bytes of EndedJob

  bool operator==(const DiskUse&) const = default;
};
inline constexpr int kDiskLowPercent = 15;    // free, and less is told
inline constexpr int kEndedJobsPercent = 50;  // of the disk, and more is told

// Sentences for whoever looks at the cluster, each with what can be done. Long before it is full:
// nothing is deleted by itself to make room.
std::vector<std::string> disk_warnings(const DiskUse& disk);

}  // namespace dtrain::head

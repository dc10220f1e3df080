#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "agent/head/rows.hpp"
#include "launcher/spec/job_spec.hpp"

// What is kept and what goes: pure. docs/checkpoint_format.md has the rules for checkpoints.
namespace dtrain::head {

// The value of a metric: a number, "inf" or "-inf". Absent: not there, or not comparable (nan).
std::optional<double> score_of(const nlohmann::json& metrics, const std::string& attribute);

// The best by the score attribute, or the newest without one; ties go to the newer. Absent when
// there is none.
std::optional<CheckpointRow> best_checkpoint(const std::vector<CheckpointRow>& checkpoints,
                                             const CheckpointSpec& spec);

// Numbers of those to delete, ascending. The newest is always kept.
std::vector<int> checkpoints_to_delete(const std::vector<CheckpointRow>& checkpoints,
                                       const CheckpointSpec& spec);

struct EndedJob {
  JobId job;
  WallTime ended;
  std::uint64_t bytes = 0;  // of its logs and checkpoints in the head's own folders
};
inline constexpr std::chrono::hours kKeepEndedJobs{24 * 30};
inline constexpr int kEndedJobsDiskPercent = 10;

// Those that ended more than 30 days ago, and the oldest ones while all of them together fill more
// than 10 % of the disk.
std::vector<JobId> jobs_to_forget(std::vector<EndedJob> jobs, WallTime now,
                                  std::uint64_t disk_bytes);

}  // namespace dtrain::head

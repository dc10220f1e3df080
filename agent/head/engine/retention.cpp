#include "agent/head/engine/retention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

// Best first.
std::vector<CheckpointRow> ranked(std::vector<CheckpointRow> checkpoints,
                                  const CheckpointSpec& spec) {
  const auto score = [&](const CheckpointRow& row) -> double {
    constexpr double kWorst = -std::numeric_limits<double>::infinity();
    if (!spec.score_attribute) return 0;
    const auto value =
        score_of(nlohmann::json::parse(row.metrics, nullptr, false), *spec.score_attribute);
    if (!value) return kWorst;
    return spec.score_order == ScoreOrder::max ? *value : -*value;
  };
  const auto scored = [&](const CheckpointRow& row) {
    return spec.score_attribute &&
           score_of(nlohmann::json::parse(row.metrics, nullptr, false), *spec.score_attribute)
               .has_value();
  };
  std::sort(checkpoints.begin(), checkpoints.end(),
            [&](const CheckpointRow& a, const CheckpointRow& b) {
              if (scored(a) != scored(b)) return scored(a);
              if (score(a) != score(b)) return score(a) > score(b);
              return a.number > b.number;
            });
  return checkpoints;
}

}  // namespace

std::optional<double> score_of(const nlohmann::json& metrics, const std::string& attribute) {
  if (!metrics.is_object()) return std::nullopt;
  const auto found = metrics.find(attribute);
  if (found == metrics.end()) return std::nullopt;
  if (found->is_number()) {
    const double value = found->get<double>();
    return std::isnan(value) ? std::nullopt : std::optional(value);
  }
  if (*found == "inf") return std::numeric_limits<double>::infinity();
  if (*found == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::optional<CheckpointRow> best_checkpoint(const std::vector<CheckpointRow>& checkpoints,
                                             const CheckpointSpec& spec) {
  if (checkpoints.empty()) return std::nullopt;
  return ranked(checkpoints, spec).front();
}

std::vector<int> checkpoints_to_delete(const std::vector<CheckpointRow>& checkpoints,
                                       const CheckpointSpec& spec, const std::set<int>& in_use) {
  if (!spec.num_to_keep || checkpoints.empty()) return {};
  int newest = 0;
  for (const CheckpointRow& row : checkpoints) newest = std::max(newest, row.number);
  std::vector<int> deleted;
  int kept = 0;
  for (const CheckpointRow& row : ranked(checkpoints, spec)) {
    if (kept < *spec.num_to_keep) {
      ++kept;
    } else if (row.number != newest && !in_use.contains(row.number)) {
      deleted.push_back(row.number);
    }
  }
  std::sort(deleted.begin(), deleted.end());
  return deleted;
}

std::vector<Forgetting> jobs_to_forget(std::vector<EndedJob> jobs, Monotonic now,
                                       const StorageSpec& settings) {
  std::sort(jobs.begin(), jobs.end(),
            [](const EndedJob& a, const EndedJob& b) { return a.ended < b.ended; });
  std::uint64_t total = 0;
  for (const EndedJob& job : jobs) total += job.bytes;
  std::vector<Forgetting> forgotten;
  for (const EndedJob& job : jobs) {
    if (job.held) continue;
    const std::chrono::hours limit(24 * settings.retention_days.value_or(0));
    if (settings.retention_days && now - job.ended > limit) {
      forgotten.push_back({job.job, "it ended " +
                                        std::to_string((now - job.ended) / std::chrono::hours(24)) +
                                        " days ago, and retention.days is " +
                                        std::to_string(*settings.retention_days)});
    } else if (settings.retention_size && total > *settings.retention_size && job.bytes > 0) {
      forgotten.push_back({job.job, "jobs that had ended filled " + human_bytes(total) +
                                        ", and retention.size is " +
                                        human_bytes(*settings.retention_size)});
    } else {
      continue;
    }
    total -= job.bytes;
  }
  return forgotten;
}

std::vector<std::string> disk_warnings(const DiskUse& disk) {
  std::vector<std::string> warnings;
  if (disk.total == 0) return warnings;
  const auto percent = [&](std::uint64_t bytes) {
    return static_cast<int>(static_cast<double>(bytes) / static_cast<double>(disk.total) * 100);
  };
  const std::string held = human_bytes(disk.ended_jobs) + " of jobs that have ended";
  if (percent(disk.free) < kDiskLowPercent) {
    warnings.push_back("the head's disk has " + human_bytes(disk.free) + " free of " +
                       human_bytes(disk.total) + ", and holds " + held +
                       ": dtrain prune clears what no job needs, dtrain rm JOB a job");
  } else if (percent(disk.ended_jobs) > kEndedJobsPercent) {
    warnings.push_back("the head's disk holds " + held + ", " +
                       std::to_string(percent(disk.ended_jobs)) +
                       " % of it: dtrain rm JOB removes one, and `retention` in the cluster YAML "
                       "old ones");
  }
  return warnings;
}

}  // namespace dtrain::head

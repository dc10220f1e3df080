#include "agent/head/retention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

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
                                       const CheckpointSpec& spec) {
  if (!spec.num_to_keep || checkpoints.empty()) return {};
  int newest = 0;
  for (const CheckpointRow& row : checkpoints) newest = std::max(newest, row.number);
  std::vector<int> deleted;
  int kept = 0;
  for (const CheckpointRow& row : ranked(checkpoints, spec)) {
    if (kept < *spec.num_to_keep) {
      ++kept;
    } else if (row.number != newest) {
      deleted.push_back(row.number);
    }
  }
  std::sort(deleted.begin(), deleted.end());
  return deleted;
}

std::vector<JobId> jobs_to_forget(std::vector<EndedJob> jobs, WallTime now,
                                  std::uint64_t disk_bytes) {
  std::sort(jobs.begin(), jobs.end(),
            [](const EndedJob& a, const EndedJob& b) { return a.ended < b.ended; });
  std::uint64_t total = 0;
  for (const EndedJob& job : jobs) total += job.bytes;
  const std::uint64_t limit = disk_bytes / 100 * kEndedJobsDiskPercent;
  std::vector<JobId> forgotten;
  for (const EndedJob& job : jobs) {
    const bool old = now - job.ended > kKeepEndedJobs;
    if (!old && (total <= limit || job.bytes == 0)) continue;
    forgotten.push_back(job.job);
    total -= job.bytes;
  }
  return forgotten;
}

}  // namespace dtrain::head

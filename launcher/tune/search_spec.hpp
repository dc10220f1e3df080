#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/spec/job_spec.hpp"
#include "launcher/tune/objective.hpp"
#include "launcher/tune/sampler.hpp"
#include "launcher/tune/scheduler.hpp"
#include "launcher/tune/space.hpp"

namespace dtrain::tune {

// When failed trials end a search: `true`, `false` or N in a YAML.
struct FailFast {
  bool first = false;  // with the first one
  int without_success =
      10;  // when so many have failed and none is complete or was stopped; 0: never

  bool operator==(const FailFast&) const = default;
};

// What a search's YAML asks for: a job with {name} in it, and how its parameters are found.
struct SearchSpec {
  std::string name;  // default: the job's
  JobSpec job;       // of each trial; its {name} are replaced by trial_job()
  SearchSpace space;
  SamplerSpec search;
  SchedulerSpec scheduler;
  Objective objective;
  std::uint64_t num_samples = 1;      // of each combination of grid_search, see trial_count()
  std::optional<int> max_concurrent;  // trials; absent: as many wait as run, two at least
  std::optional<std::chrono::seconds> time_budget;
  std::vector<StopCondition> stop;
  FailFast fail_fast;
  std::vector<std::string> warm_start;  // ids of searches that have ended

  static constexpr std::uint64_t kMostTrials = 100'000;
  static constexpr int kMostConcurrent = 10'000;
  static constexpr std::size_t kMostWarmStarts = 100;

  std::uint64_t trials() const noexcept { return trial_count(space, search, num_samples); }
};

// Every problem of the values at once, under the paths of a YAML: the job's keys and the search's
// stand side by side there.
void validate(const SearchSpec& spec, Problems& problems);

// The wire and database form: the search's keys as in the YAML, the job's under `job`. What is
// wrong with it goes to `problems`, keys that are not known too, but those of the job, which
// throw Error(invalid); then the spec is not to be used. Validated when there are none.
nlohmann::json to_json(const SearchSpec& spec);
SearchSpec search_spec_from_json(const nlohmann::json& json, Problems& problems,
                                 UnknownKeys unknown = UnknownKeys::refuse);

// The search's own keys of `json`, read into `spec`, whose job and name are there already. Checks
// nothing of the whole.
void read_search_keys(const nlohmann::json& json, SearchSpec& spec, Problems& problems);

}  // namespace dtrain::tune

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/problem.hpp"

// What of a trial's reports a search looks at.
namespace dtrain::tune {

using TrialNumber = std::uint64_t;  // in a search, from 0 in the order of starting

enum class Mode : std::uint8_t { min, max };

struct Objective {
  std::string metric;
  Mode mode = Mode::min;
};
// The keys `metric` and `mode` of a search's YAML.
Objective objective_from_json(const nlohmann::json& metric, const nlohmann::json& mode,
                              const Path& path, Problems& problems);

// Larger is better. What is no finite number is worse than any, which is -infinity.
double score(Mode mode, double value) noexcept;

// One report of a trial, as schedulers have it.
struct Measured {
  TrialNumber trial = 0;
  double time = 0;   // what `time_attr` says; grows from report to report of a trial
  double value = 0;  // of the metric, may be NaN
};

// A report's metrics, of which it is the iteration-th of its trial, counted from 1 and over all
// attempts. Absent: the time or the metric is not in it, and nobody decides anything by it. A
// metric that is null, which is how JSON writes NaN, is NaN, and so is "nan"; "inf" and "-inf" are
// what they say, as in docs/rank_contract.md.
std::optional<Measured> measured(const nlohmann::json& metrics, TrialNumber trial,
                                 std::int64_t iteration, const std::string& metric,
                                 const std::string& time_attr);
inline constexpr const char* kIteration = "training_iteration";  // the time that always is there

// `stop` of a search: {training_iteration: 100, loss: "<= 0.1"}; a plain number is ">=", as in Ray.
struct StopCondition {
  enum class Sign : std::uint8_t { at_least, at_most, above, below };

  std::string metric;
  Sign sign = Sign::at_least;
  double bound = 0;
};
std::vector<StopCondition> stop_from_json(const nlohmann::json& json, const Path& path,
                                          Problems& problems);
nlohmann::json to_json(const std::vector<StopCondition>& conditions);
// Why a trial ends with this report: the first that is met. A metric that is missing or no number
// meets nothing.
std::optional<std::string> stop_reason(const std::vector<StopCondition>& conditions,
                                       const nlohmann::json& metrics, std::int64_t iteration);

}  // namespace dtrain::tune

#include "launcher/tune/objective.hpp"

#include <array>
#include <cmath>
#include <limits>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/tune/keys.hpp"

namespace dtrain::tune {
namespace {

constexpr std::array kSigns = {">=", "<=", ">", "<"};
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

std::optional<double> metric_of(const nlohmann::json& metrics, const std::string& name,
                                std::int64_t iteration) {
  const auto found = metrics.is_object() ? metrics.find(name) : metrics.end();
  if (found == metrics.end()) {
    return name == kIteration ? std::optional(static_cast<double>(iteration)) : std::nullopt;
  }
  if (found->is_number()) return found->get<double>();
  if (found->is_null() || *found == "nan") return kNoNumber;
  if (*found == "inf") return std::numeric_limits<double>::infinity();
  if (*found == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace

Objective objective_from_json(const nlohmann::json& metric, const nlohmann::json& mode,
                              const Path& path, Problems& problems) {
  Objective objective;
  const Path at = with(path, "metric");
  if (metric.is_string() && !metric.get_ref<const std::string&>().empty()) {
    objective.metric = metric.get<std::string>();
  } else {
    problems.add(at, "the metric's name is wanted, as trials report it");
  }
  if (mode == "max") {
    objective.mode = Mode::max;
  } else if (mode != "min") {
    problems.add(with(path, "mode"), "must be min or max, not " + shown(mode));
  }
  return objective;
}

double score(Mode mode, double value) noexcept {
  if (!std::isfinite(value)) return -std::numeric_limits<double>::infinity();
  return mode == Mode::max ? value : -value;
}

std::optional<Measured> measured(const nlohmann::json& metrics, TrialNumber trial,
                                 std::int64_t iteration, const std::string& metric,
                                 const std::string& time_attr) {
  const std::optional<double> time = metric_of(metrics, time_attr, iteration);
  const std::optional<double> value = metric_of(metrics, metric, iteration);
  if (!time || !std::isfinite(*time) || !value) return std::nullopt;
  return Measured{trial, *time, *value};
}

std::vector<StopCondition> stop_from_json(const nlohmann::json& json, const Path& path,
                                          Problems& problems) {
  std::vector<StopCondition> conditions;
  if (json.is_null()) return conditions;
  if (!json.is_object()) {
    problems.add(path, "must be metrics and their bounds, not " + shown(json));
    return conditions;
  }
  for (const auto& [metric, bound] : json.items()) {
    StopCondition condition{metric};
    std::optional<double> number;
    if (bound.is_number()) number = bound.get<double>();
    if (bound.is_string()) {
      const std::string text = trimmed(bound.get_ref<const std::string&>());
      for (std::size_t sign = 0; sign < kSigns.size() && !number; ++sign) {
        if (!text.starts_with(kSigns[sign])) continue;
        condition.sign = static_cast<StopCondition::Sign>(sign);
        number = number_from<double>(trimmed(text.substr(std::string(kSigns[sign]).size())));
      }
    }
    if (!number || !std::isfinite(*number)) {
      problems.add(with(path, metric),
                   "must be a number, or one behind >=, <=, > or <, not " + shown(bound));
      continue;
    }
    condition.bound = *number;
    conditions.push_back(condition);
  }
  return conditions;
}

nlohmann::json to_json(const std::vector<StopCondition>& conditions) {
  nlohmann::json object = nlohmann::json::object();
  for (const StopCondition& each : conditions) {
    object[each.metric] = std::string(kSigns[static_cast<std::size_t>(each.sign)]) + " " +
                          nlohmann::json(each.bound).dump();
  }
  return object;
}

std::optional<std::string> stop_reason(const std::vector<StopCondition>& conditions,
                                       const nlohmann::json& metrics, std::int64_t iteration) {
  for (const StopCondition& each : conditions) {
    const std::optional<double> value = metric_of(metrics, each.metric, iteration);
    if (!value) continue;
    const bool met = each.sign == StopCondition::Sign::at_least  ? *value >= each.bound
                     : each.sign == StopCondition::Sign::at_most ? *value <= each.bound
                     : each.sign == StopCondition::Sign::above   ? *value > each.bound
                                                                 : *value < each.bound;
    if (met) {
      return printable(each.metric, false) + " is " + number_text(*value) + ", " +
             kSigns[static_cast<std::size_t>(each.sign)] + " " + number_text(each.bound);
    }
  }
  return std::nullopt;
}

}  // namespace dtrain::tune

#include "trainer/core/metrics.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"

namespace dtrain::train {

nlohmann::json metrics_to_json(const Metrics& metrics) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : metrics) {
    if (std::isnan(value)) {
      json[name] = "nan";
    } else if (std::isinf(value)) {
      json[name] = value > 0 ? "inf" : "-inf";
    } else {
      json[name] = value;
    }
  }
  return json;
}

std::string names_of(const Metrics& metrics) {
  std::string names;
  for (const auto& [name, value] : metrics) names += (names.empty() ? "" : ", ") + name;
  return names;
}

Metrics metrics_from_json(const nlohmann::json& json) {
  if (!json.is_object()) throw Error("metrics: expected an object");
  Metrics metrics;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number()) {
      metrics[name] = value.get<double>();
    } else if (value == "nan") {
      metrics[name] = std::numeric_limits<double>::quiet_NaN();
    } else if (value == "inf") {
      metrics[name] = std::numeric_limits<double>::infinity();
    } else if (value == "-inf") {
      metrics[name] = -std::numeric_limits<double>::infinity();
    } else {
      throw Error("metrics: '" + name + "' is neither a number nor nan, inf or -inf");
    }
  }
  return metrics;
}

}  // namespace dtrain::train

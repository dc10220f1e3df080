#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dtrain::train {

// Measured values by name. A name has 1 to 128 printable characters.
using Metrics = std::map<std::string, double>;

// Their names, for messages: "a, b".
std::string names_of(const Metrics& metrics);

// As both contracts write them: a value that is not finite is "nan", "inf" or "-inf".
nlohmann::json metrics_to_json(const Metrics& metrics);
// Throws Error on anything else.
Metrics metrics_from_json(const nlohmann::json& json);

}  // namespace dtrain::train

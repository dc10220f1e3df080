#pragma once

#include <nlohmann/json.hpp>

#include "trainer/core/environment.hpp"

namespace dtrain::train {

// The parameters of this trial of a search, nested as its space is, over `defaults`; outside of a
// search those alone. Throws Error where DTRAIN_PARAMS (docs/rank_contract.md) is no JSON object.
nlohmann::json params(nlohmann::json defaults = nlohmann::json::object(),
                      const Lookup& lookup = process_variable);

}  // namespace dtrain::train

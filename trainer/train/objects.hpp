#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "trainer/train/context.hpp"

namespace dtrain::train {

// Collectives of JSON values: what Python's broadcast_object_list and all_gather_object are used
// for. Each rank's value may have another size. Throw Error if a value cannot be written as JSON
// (a string that is not UTF-8).

nlohmann::json broadcast_object(Context& context, const nlohmann::json& value, int from = 0);
std::vector<nlohmann::json> all_gather_objects(Context& context, const nlohmann::json& value);

}  // namespace dtrain::train

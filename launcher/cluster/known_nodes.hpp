#pragma once

#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/cluster/plan.hpp"

namespace dtrain {

// The nodes of this machine's notes, and those that the head's status (docs/api.md) counts among
// its own; without a status, the notes alone. Pure.
std::vector<KnownNode> known_nodes(const std::vector<Machine>& noted,
                                   const std::optional<nlohmann::json>& status);

}  // namespace dtrain

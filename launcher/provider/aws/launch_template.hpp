#pragma once

#include <nlohmann/json_fwd.hpp>

#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

// Looks at the LaunchTemplate of a node_config, where it has one, and makes it name the version
// that was looked at, as a number: $Latest and $Default may be others later. Throws Error(invalid)
// for one that asks for persistent spot requests, and ApiError.
void look_at_template(Client& client, nlohmann::json& config);

}  // namespace dtrain::aws

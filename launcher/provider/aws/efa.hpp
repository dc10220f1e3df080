#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

// The NetworkInterfaces of an instance of `type` that has an Elastic Fabric Adapter on each of its
// network cards; the first has an address too. Throws ApiError, or Error(invalid) for a type that
// has none.
nlohmann::json efa_interfaces(Client& client, const std::string& type);

}  // namespace dtrain::aws

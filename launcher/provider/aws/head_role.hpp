#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/ids.hpp"
#include "launcher/provider/aws/client.hpp"
#include "launcher/provider/provider.hpp"

// What lets a cluster's head ask for its machines: an IAM role, and an instance profile of the same
// name, below the path /dtrain/REGION/CLUSTER/, by which they are found. There is no such profile
// without its role, so that the role alone is looked for. All throw ApiError, or Error.
namespace dtrain::aws {

inline constexpr const char* kInstanceRole = "instance role";  // Belonging::what

// Sees that the head's instance, which runs, has a profile. One that it has already, by its
// node_config say, stays, whatever it lets it do. Else the cluster's own is made, where there is
// none, or half of one, which a killed command left, and given to the instance. The policy of the
// cluster's own is written anew each time; who may not do that leaves it as it is.
// `workers_profiles`: names or ARNs of the instance profiles that the workers' node_configs have:
// the head may pass their roles on.
void ensure_head_role(Client& client, const std::string& cluster_name, const ClusterId& cluster,
                      const std::string& instance_id,
                      const std::vector<std::string>& workers_profiles);

// The roles of one cluster, or of all where the name is empty. Where IAM lets nobody look they are
// what the tags of heads tell of, with a note that says so; of all, then, one row more, that is
// kept, tells that there may be others.
std::vector<Orphan> head_roles(Client& client, const std::string& cluster_name);

// Removes the profile, and then the role; what is not there is fine. Where something stays its note
// says why.
void remove_head_role(Client& client, Belonging& role);

// What the role may do. `passed`: ARNs of the roles that it may pass on to instances.
nlohmann::json head_policy(const std::string& region, const std::string& cluster_name,
                           const std::vector<std::string>& passed);

}  // namespace dtrain::aws

#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

// What a security group that dtrain has made is to let in.
struct SecurityRules {
  std::vector<nlohmann::json> own;   // IpPermission each: added where they are not there
  std::vector<nlohmann::json> said;  // the YAML's: those that it has no more are taken away, too
  std::vector<nlohmann::json> out;   // what it lets out besides
};

// As IpPermissions with one source each, which is what EC2 has as a rule.
std::vector<nlohmann::json> one_by_one(const nlohmann::json& permissions);
// Equal for equal rules, as far as EC2 writes down what it is told: names of protocols in capitals
// or as numbers, and ranges whose last bits count for nothing, are one rule.
std::string rule_key(const nlohmann::json& permission);

// Sees that the group has these rules: one request for all that the YAML is to have, one for the
// others. `is_new`: the group was just made, and has none. Rules of the YAML's carry a tag, so that
// nobody else's is ever revoked. Throws ApiError.
void put_rules(Client& client, const std::string& group, bool is_new, const SecurityRules& rules);

}  // namespace dtrain::aws

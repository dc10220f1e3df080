#include "launcher/provider/aws/head_role.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/instances.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;

constexpr const char* kRoleTag = "dtrain-head-role";  // of the head's instance: the role's name
constexpr const char* kPolicy = "dtrain";
constexpr const char* kPath = "/dtrain/";
constexpr std::size_t kMostRoleName = 64;
constexpr std::size_t kHash = 12;
constexpr std::chrono::milliseconds kUntilKnown{60000};  // everywhere, after it was made
constexpr std::chrono::milliseconds kUntilFree{30000};   // after it was taken out

std::string name_of_role(const ClusterId& cluster) {
  std::string name = "dtrain-" + cluster.str();
  if (name.size() <= kMostRoleName) return name;
  Sha256 hash;
  hash.add(name);
  return name.substr(0, kMostRoleName - kHash - 1) + "-" + hash.hex().substr(0, kHash);
}

std::string path_of(const Client& client, const std::string& cluster_name) {
  const std::string regions = kPath + client.region() + "/";
  return cluster_name.empty() ? regions : regions + cluster_name + "/";
}

bool is_no_right(const ApiError& error) {
  return error.aws_code().starts_with("AccessDenied") ||
         error.aws_code() == "UnauthorizedOperation";
}

// What was just made is not known everywhere at once, and a machine that just runs may not be.
CallOptions until_known() {
  CallOptions options;
  options.deadline = kUntilKnown;
  options.again = [](const std::string& code) {
    return code == "NoSuchEntity" || code == "ConcurrentModification" ||
           code == "EntityTemporarilyUnmodifiable" || code == "InvalidInstanceID.NotFound" ||
           code == "IncorrectInstanceState" || code == "InvalidParameterValue";
  };
  return options;
}

// `there`: what it is refused by where a killed command, or another `up`, has done it.
template <typename Ask>
void unless(const char* there, Ask ask) {
  try {
    ask();
  } catch (const ApiError& error) {
    if (error.aws_code() != there) throw;
  }
}

// Empty: it has none.
std::string profile_of(Client& client, const std::string& instance_id) {
  std::string arn;
  const Xml answer =
      client.ec2("DescribeInstances", {{"InstanceId.1", instance_id}}, until_known());
  for (const Xml& reservation : answer.list("reservationSet")) {
    for (const Xml& instance : reservation.list("instancesSet")) {
      arn = instance.at("iamInstanceProfile/arn");
    }
  }
  return arn;
}

std::vector<std::string> roles_of(Client& client, const std::vector<std::string>& profiles) {
  std::set<std::string> roles;
  for (const std::string& each : profiles) {
    const std::string name = each.substr(each.rfind('/') + 1);
    const Xml answer = client.iam("GetInstanceProfile", {{"InstanceProfileName", name}});
    for (const Xml& role : answer.list("GetInstanceProfileResult/InstanceProfile/Roles")) {
      roles.insert(role.at("Arn"));
    }
  }
  return {roles.begin(), roles.end()};
}

struct Role {
  std::string name;
  std::string path;
  Form named;       // the role
  Form profile;     // the profile
  Form put_policy;  // PutRolePolicy's
};

void make(Client& client, const Role& role, const std::string& cluster_name,
          const ClusterId& cluster, const std::string& instance_id) {
  const CallOptions wait = until_known();
  const json trust = {{"Version", "2012-10-17"},
                      {"Statement",
                       {{{"Effect", "Allow"},
                         {"Principal", {{"Service", "ec2.amazonaws.com"}}},
                         {"Action", "sts:AssumeRole"}}}}};
  unless("EntityAlreadyExists", [&] {
    client.iam("CreateRole", {{"RoleName", role.name},
                              {"Path", role.path},
                              {"AssumeRolePolicyDocument", trust.dump()},
                              {"Description", "what the head of a dtrain cluster may do"},
                              {"Tags.member.1.Key", kClusterTag},
                              {"Tags.member.1.Value", cluster_name},
                              {"Tags.member.2.Key", "dtrain-cluster-id"},
                              {"Tags.member.2.Value", cluster.str()}});
  });
  // For who may not look among IAM's roles.
  client.ec2("CreateTags",
             {{"ResourceId.1", instance_id}, {"Tag.1.Key", kRoleTag}, {"Tag.1.Value", role.name}},
             wait);
  client.iam("PutRolePolicy", role.put_policy, wait);
  Form profile = role.profile;
  profile.emplace_back("Path", role.path);
  unless("EntityAlreadyExists", [&] { client.iam("CreateInstanceProfile", profile); });
  Form both = role.profile;
  both.insert(both.end(), role.named.begin(), role.named.end());
  unless("LimitExceeded",  // a profile has one role
         [&] { client.iam("AddRoleToInstanceProfile", both, wait); });
  unless("IncorrectState", [&] {
    client.ec2("AssociateIamInstanceProfile",
               {{"InstanceId", instance_id}, {"IamInstanceProfile.Name", role.name}}, wait);
  });
}

// By the tags of heads, those included that have just gone.
std::vector<Orphan> tagged_roles(Client& client, const std::string& cluster_name,
                                 const std::string& why) {
  std::vector<Orphan> found;
  std::set<std::string> seen;
  for_each_instance(
      client, cluster_name.empty() ? of_any_cluster() : of_cluster(cluster_name),
      [&](const Xml& instance) {
        const std::string role = tag_of(instance, kRoleTag);
        if (role.empty() || !seen.insert(role).second) return;
        found.push_back({tag_of(instance, kClusterTag), {kInstanceRole, role, false, false, why}});
      });
  return found;
}

}  // namespace

void ensure_head_role(Client& client, const std::string& cluster_name, const ClusterId& cluster,
                      const std::string& instance_id,
                      const std::vector<std::string>& workers_profiles) {
  Role role{name_of_role(cluster), path_of(client, cluster_name), {}, {}, {}};
  role.named = {{"RoleName", role.name}};
  role.profile = {{"InstanceProfileName", role.name}};
  try {
    const std::string has = profile_of(client, instance_id);
    const bool is_own = has.ends_with(role.path + role.name);
    if (!has.empty() && !is_own) return;
    try {
      const json policy =
          head_policy(client.region(), cluster_name, roles_of(client, workers_profiles));
      role.put_policy = {
          {"RoleName", role.name}, {"PolicyName", kPolicy}, {"PolicyDocument", policy.dump()}};
      if (is_own) client.iam("PutRolePolicy", role.put_policy);
    } catch (const ApiError& error) {
      if (!is_own || !is_no_right(error)) throw;
    }
    if (!is_own) make(client, role, cluster_name, cluster, instance_id);
  } catch (const ApiError& error) {
    Error told = Error(error).while_doing("giving the head the role by which it asks for machines");
    if (is_no_right(error)) {
      told.with_hint(
          "let somebody run it who may make roles; or name, in the head's node_config, an "
          "IamInstanceProfile with the policy of docs/aws.md#what-the-head-may-do");
    }
    throw told;
  }
}

std::vector<Orphan> head_roles(Client& client, const std::string& cluster_name) {
  const std::string path = path_of(client, cluster_name);
  std::vector<Orphan> found;
  try {
    client.iam_pages("ListRoles", {{"PathPrefix", path}}, [&](const Xml& page) {
      for (const Xml& role : page.list("Roles")) {
        const std::string below = role.at("Path").substr(path_of(client, "").size());
        const std::string cluster = below.substr(0, below.find('/'));
        if (cluster.empty()) continue;  // it is none of ours
        found.push_back({cluster, {kInstanceRole, role.at("RoleName"), false, false, ""}});
      }
    });
  } catch (const ApiError& error) {
    if (!is_no_right(error)) throw;
    found = tagged_roles(client, cluster_name, error.message());
    if (cluster_name.empty()) {
      found.push_back({"", {kInstanceRole, path + "*", false, true, error.message()}});
    }
  }
  return found;
}

void remove_head_role(Client& client, Belonging& role) {
  CallOptions options;
  options.deadline = kUntilFree;
  options.again = [](const std::string& code) {
    return code == "DeleteConflict" || code == "ConcurrentModification" ||
           code == "EntityTemporarilyUnmodifiable";
  };
  const auto remove = [&](const char* action, const Form& form) {
    unless("NoSuchEntity", [&] { client.iam(action, form, options); });
  };
  try {
    remove("RemoveRoleFromInstanceProfile",
           {{"InstanceProfileName", role.id}, {"RoleName", role.id}});
    remove("DeleteInstanceProfile", {{"InstanceProfileName", role.id}});
    remove("DeleteRolePolicy", {{"RoleName", role.id}, {"PolicyName", kPolicy}});
    remove("DeleteRole", {{"RoleName", role.id}});
    role.gone = true;
    role.note.clear();
  } catch (const ApiError& error) {
    role.note = error.message();
  }
}

json head_policy(const std::string& region, const std::string& cluster_name,
                 const std::vector<std::string>& passed) {
  const std::string partition = arn_partition(region);
  const std::string ec2 = "arn:" + partition + ":ec2:" + region + ":*:";
  const auto only = [](const char* key, const json& value) {
    return json{{"StringEquals", {{key, value}}}};
  };
  json statements = json::array();
  const auto allow = [&](const json& action, const char* what, const json& resources,
                         const json& condition = json()) {
    json& statement =
        statements.emplace_back(json{{"Effect", "Allow"}, {"Action", action}, {what, resources}});
    if (!condition.is_null()) statement["Condition"] = condition;
  };
  allow("ec2:DescribeInstances", "Resource", "*");
  // No request is without an instance, so that all else is bound by that, too.
  allow("ec2:RunInstances", "Resource", ec2 + "instance/*",
        only("aws:RequestTag/dtrain-cluster", cluster_name));
  allow("ec2:RunInstances", "NotResource", "arn:" + partition + ":ec2:*:*:instance/*");
  json made = json::array();  // what RunInstances makes, and a node_config may have tags of
  for (const char* kind : {"instance", "volume", "network-interface", "spot-instances-request"}) {
    made.push_back(ec2 + kind + "/*");
  }
  allow("ec2:CreateTags", "Resource", made, only("ec2:CreateAction", "RunInstances"));
  allow({"ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances",
         "ec2:ModifyInstanceAttribute"},
        "Resource", ec2 + "instance/*", only("ec2:ResourceTag/dtrain-cluster", cluster_name));
  if (!passed.empty()) {
    json service = "ec2.amazonaws.com";
    if (partition == "aws-cn") service = {"ec2.amazonaws.com", "ec2.amazonaws.com.cn"};
    allow("iam:PassRole", "Resource", passed, only("iam:PassedToService", service));
  }
  return {{"Version", "2012-10-17"}, {"Statement", statements}};
}

}  // namespace dtrain::aws

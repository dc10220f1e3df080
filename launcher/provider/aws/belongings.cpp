#include "launcher/provider/aws/belongings.hpp"

#include <algorithm>
#include <chrono>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/head_role.hpp"
#include "launcher/provider/aws/instances.hpp"
#include "launcher/remote/ssh/blob.hpp"

namespace dtrain::aws {
namespace {

constexpr std::chrono::milliseconds kUntilUnused{120000};
constexpr std::chrono::milliseconds kLook{1000};

struct Kind {
  const char* what;
  const char* describe;
  const char* list;  // of the answer
  const char* id;
  const char* remove;
  const char* key;
  const char* busy;    // EC2's words where it is in use,
  const char* absent;  // and where there is none
};
constexpr const char* kKeyPair = "key pair";
constexpr Kind kKinds[] = {
    {"security group", "DescribeSecurityGroups", "securityGroupInfo", "groupId",
     "DeleteSecurityGroup", "GroupId", "DependencyViolation", "InvalidGroup.NotFound"},
    {"placement group", "DescribePlacementGroups", "placementGroupSet", "groupName",
     "DeletePlacementGroup", "GroupName", "InvalidPlacementGroup.InUse",
     "InvalidPlacementGroup.Unknown"},
    {kKeyPair, "DescribeKeyPairs", "keySet", "keyName", "DeleteKeyPair", "KeyName", "",
     "InvalidKeyPair.NotFound"},
};

Belonging volume_of(const Xml& volume, Prices& prices) {
  const std::string kind = volume.at("volumeType");
  Belonging kept{"volume", volume.at("volumeId"), false, true,
                 volume.at("size") + " GiB of " + kind + ", by DeleteOnTermination: false"};
  const double gib = number_from<double>(volume.at("size")).value_or(0);
  const auto price = prices.volume_month(kind, gib, {});
  kept.note += price ? "; " + human_dollars(*price) + " a month" : "; what it costs is not known";
  return kept;
}

// Whose filter it is; empty: of any cluster.
std::string cluster_of(const Form& filter) {
  return filter == of_any_cluster() ? "" : filter.at(1).second;
}

// The other cluster whose machines have this key pair, and whose head may ask for more by it;
// empty: none. EC2 deletes it all the same.
std::string other_user(Client& client, const std::string& pair, const std::string& cluster_name) {
  Form form = of_any_cluster();
  form.emplace_back("Filter.2.Name", "key-name");
  form.emplace_back("Filter.2.Value.1", pair);
  std::string user;
  for_each_instance(client, form, [&](const Xml& instance) {
    const std::string state = instance.at("instanceState/name");
    const std::string cluster = tag_of(instance, kClusterTag);
    const bool goes = state == "terminated" || state == "shutting-down";
    if (!goes && cluster != cluster_name) user = cluster;
  });
  return user;
}

}  // namespace

Form tagged(const char* kind, const std::string& cluster_name) {
  return {{"TagSpecification.1.ResourceType", kind},
          {"TagSpecification.1.Tag.1.Key", kClusterTag},
          {"TagSpecification.1.Tag.1.Value", cluster_name}};
}

Form of_cluster(const std::string& cluster_name) {
  return {{"Filter.1.Name", std::string("tag:") + kClusterTag}, {"Filter.1.Value.1", cluster_name}};
}

Form of_any_cluster() {
  return {{"Filter.1.Name", "tag-key"}, {"Filter.1.Value.1", kClusterTag}};
}

std::string tag_of(const Xml& thing, const char* name) {
  for (const Xml& tag : thing.list("tagSet")) {
    if (tag.at("key") == name) return tag.at("value");
  }
  return {};
}

void ensure_key_pair(Client& client, const std::string& name, const std::string& cluster_name,
                     const std::string& public_line) {
  const Xml answer =
      client.ec2("DescribeKeyPairs", {{"Filter.1.Name", "key-name"}, {"Filter.1.Value.1", name}});
  if (!answer.list("keySet").empty()) return;
  if (public_line.empty()) {
    throw Error(ErrorCode::not_found,
                "there is no key pair " + printable(name, false) + " in " + client.region() +
                    ", and the public half of auth.ssh_private_key, of which it could be made, "
                    "cannot be read");
  }
  Form form = tagged("key-pair", cluster_name);
  form.emplace_back("KeyName", name);
  form.emplace_back("PublicKeyMaterial", ssh::encode_base64(public_line));
  try {
    client.ec2("ImportKeyPair", form);
  } catch (const ApiError& error) {
    if (error.aws_code() != "InvalidKeyPair.Duplicate") throw;  // another `up` was first
  }
}

std::string placement_group_name(const ClusterId& cluster, const std::string& type,
                                 const std::string& strategy) {
  const std::string prefix = "dtrain-";
  std::string name = cluster.str() + "-" + type + "-" + strategy;
  const std::size_t most = kMostName - prefix.size();  // the end is what differs
  if (name.size() > most) name.erase(0, name.size() - most);
  return prefix + name;
}

std::string ensure_placement_group(Client& client, const std::string& cluster_name,
                                   const ClusterId& cluster, const std::string& type,
                                   const std::string& strategy) {
  std::string name = placement_group_name(cluster, type, strategy);
  Form form = tagged("placement-group", cluster_name);
  form.emplace_back("GroupName", name);
  form.emplace_back("Strategy", strategy);
  try {
    client.ec2("CreatePlacementGroup", form);
  } catch (const ApiError& error) {
    if (error.aws_code() != "InvalidPlacementGroup.Duplicate") throw;
  }
  return name;
}

std::vector<Orphan> belongings(Client& client, const Form& filter, Prices& prices) {
  std::vector<Orphan> found;
  for (const Kind& kind : kKinds) {
    client.ec2_pages(kind.describe, filter, [&](const Xml& page) {
      for (const Xml& each : page.list(kind.list)) {
        found.push_back(
            {tag_of(each, kClusterTag), {kind.what, each.at(kind.id), false, false, ""}});
      }
    });
  }
  client.ec2_pages("DescribeVolumes", filter, [&](const Xml& page) {
    for (const Xml& volume : page.list("volumeSet")) {
      if (volume.at("status") != "available") continue;
      found.push_back({tag_of(volume, kClusterTag), volume_of(volume, prices)});
    }
  });
  const std::string cluster = cluster_of(filter);
  try {  // IAM is another service: what else there is can go without it
    for (Orphan& role : head_roles(client, cluster)) found.push_back(std::move(role));
  } catch (const Error& error) {
    found.push_back({cluster, {kInstanceRole, "", false, false, error.what()}});
  }
  return found;
}

std::vector<Belonging> await_detached(Client& client, const Form& filter) {
  const World& world = client.world();
  const Monotonic until = world.clock.now() + kDetached;
  while (true) {
    std::vector<Belonging> attached;
    client.ec2_pages("DescribeVolumes", filter, [&](const Xml& page) {
      for (const Xml& volume : page.list("volumeSet")) {
        if (volume.at("status") != "in-use") continue;
        attached.push_back({"volume", volume.at("volumeId"), false, false,
                            "is attached still " + human_duration(kDetached) +
                                " after its machine has gone; it costs"});
      }
    });
    if (attached.empty() || world.clock.now() > until) return attached;
    world.pause(kLook, {});
  }
}

void take_away(Client& client, Orphan& found) {
  Belonging& thing = found.thing;
  if (thing.kept) return;
  if (thing.what == kInstanceRole) {
    const bool is_known = !thing.id.empty();  // else nobody could look whether there is one
    if (is_known) remove_head_role(client, thing);
    return;
  }
  const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                 [&](const Kind& each) { return thing.what == each.what; });
  if (kind == std::end(kKinds)) return;
  CallOptions options;
  options.deadline = kUntilUnused;
  options.again = [&](const std::string& code) { return code == kind->busy; };
  try {
    if (thing.what == kKeyPair) {
      if (const std::string user = other_user(client, thing.id, found.cluster); !user.empty()) {
        thing.kept = true;
        thing.note = "cluster " + printable(user, false) + " launches by it";
        return;
      }
    }
    client.ec2(kind->remove, {{kind->key, thing.id}}, options);
    thing.gone = true;
  } catch (const ApiError& error) {
    thing.gone = error.aws_code() == kind->absent;
    if (!thing.gone) thing.note = error.message();
  }
}

}  // namespace dtrain::aws

#include "launcher/provider/aws/network.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "launcher/core/address.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/security_rules.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;

constexpr std::size_t kMostNames = 12;  // in a message

json ssh_from(const std::string& range, int port) {
  const bool is_v6 = range.find(':') != std::string::npos;
  json permission = {{"IpProtocol", "tcp"}, {"FromPort", port}, {"ToPort", port}};
  if (is_v6) {
    permission["Ipv6Ranges"] = {{{"CidrIpv6", range}, {"Description", "dtrain"}}};
  } else {
    permission["IpRanges"] = {{{"CidrIp", range}, {"Description", "dtrain"}}};
  }
  return permission;
}

// The subnets that a node_config names, by EC2's key and by Ray's; empty: none.
std::vector<std::string> named_subnets(const json& config) {
  std::vector<std::string> ids;
  if (config.contains("SubnetId")) ids.push_back(config["SubnetId"].get<std::string>());
  for (const json& each : config.value("SubnetIds", json::array())) {
    ids.push_back(each.get<std::string>());
  }
  return ids;
}

}  // namespace

std::string address_seen(Client& client) {
  const std::string url =
      client.config().endpoint("checkip").value_or("https://checkip.amazonaws.com") + "/";
  HttpRequest request;
  request.url = url;
  std::string said = trimmed(client.get(request, "asking which address this machine has"));
  if (!is_numeric_address(said)) {
    throw Error(ErrorCode::failed, origin_of(url) + " does not say which address this machine has")
        .with_hint("provider.security_group: {GroupName: …} names a group that lets it in");
  }
  return said;
}

const std::vector<Network::Subnet>& Network::subnets() {
  if (subnets_) return *subnets_;
  std::vector<Subnet> found;
  client_.ec2_pages(
      "DescribeSubnets", {{"Filter.1.Name", "state"}, {"Filter.1.Value.1", "available"}},
      [&](const Xml& page) {
        for (const Xml& each : page.list("subnetSet")) {
          found.push_back({each.at("subnetId"), each.at("vpcId"), each.at("availabilityZone"),
                           each.at("mapPublicIpOnLaunch") == "true",
                           each.at("defaultForAz") == "true"});
        }
      });
  // The default one of a zone first, and the order is the same each time.
  std::sort(found.begin(), found.end(), [](const Subnet& a, const Subnet& b) {
    return std::tuple(!a.is_default, std::string_view(a.zone), std::string_view(a.id)) <
           std::tuple(!b.is_default, std::string_view(b.zone), std::string_view(b.id));
  });
  return subnets_.emplace(std::move(found));
}

const std::string& Network::vpc_of_choice(const std::vector<Subnet>& all) {
  if (!vpc_.empty()) return vpc_;
  std::set<std::string> vpcs;
  for (const Subnet& each : all) vpcs.insert(each.vpc);
  const Xml answer =
      client_.ec2("DescribeVpcs", {{"Filter.1.Name", "isDefault"}, {"Filter.1.Value.1", "true"}});
  for (const Xml& vpc : answer.list("vpcSet")) {
    if (vpcs.contains(vpc.at("vpcId"))) return vpc_ = vpc.at("vpcId");
  }
  if (vpcs.size() == 1) return vpc_ = *vpcs.begin();
  throw Error(ErrorCode::not_found,
              client_.region() +
                  (vpcs.empty() ? " has no subnet"
                                : " has no default VPC, and several others: " +
                                      join_some(std::vector<std::string>(vpcs.begin(), vpcs.end()),
                                                kMostNames)))
      .with_hint(
          "SubnetIds: [subnet-…] in node_config says where nodes are; "
          "aws ec2 create-default-vpc makes a default one");
}

// In the order of the YAML's zones; without those, of all that the region has.
std::vector<Network::Subnet> Network::of_zones() {
  const std::vector<Subnet>& all = subnets();
  const std::string vpc = vpc_of_choice(all);
  std::vector<Subnet> usable;
  std::set<std::string> zones;
  for (const Subnet& each : all) {
    if (each.vpc != vpc) continue;
    zones.insert(each.zone);
    if (each.is_public || spec_.provider.use_internal_ips) usable.push_back(each);
  }
  if (usable.empty()) {
    throw Error(ErrorCode::not_found,
                "no subnet of " + vpc + " gives its instances public addresses")
        .with_hint(
            "provider.use_internal_ips: true where this machine reaches the others; else "
            "SubnetIds in node_config");
  }
  const std::string wanted = spec_.provider.other.value("availability_zone", "");
  if (wanted.empty()) return usable;
  std::vector<Subnet> ordered;
  for (const std::string& word : split(wanted, ',')) {
    const std::string zone = trimmed(word);
    const std::size_t before = ordered.size();
    std::copy_if(usable.begin(), usable.end(), std::back_inserter(ordered),
                 [&](const Subnet& each) { return each.zone == zone; });
    if (ordered.size() > before || zone.empty()) continue;
    throw Error(
        ErrorCode::not_found,
        (zones.contains(zone) ? "no subnet of " + zone + " gives its instances public addresses"
                              : "there is no subnet in " + printable(zone, false) + " of " + vpc))
        .with_hint("provider.availability_zone may name: " +
                   join_some(std::vector<std::string>(zones.begin(), zones.end()), kMostNames));
  }
  return ordered;
}

std::vector<Launch::Place> Network::places(const json& config, const ClusterId& cluster) {
  const std::lock_guard lock(mutex_);
  const json interfaces = config.value("NetworkInterfaces", json::array());
  const bool has_own = std::any_of(interfaces.begin(), interfaces.end(), [](const json& each) {
    return each.contains("NetworkInterfaceId") || each.contains("SubnetId");
  });
  const std::vector<std::string> named = named_subnets(config);
  // What a template says of it is not known here, and may not be said twice.
  if (has_own || (config.contains("LaunchTemplate") && named.empty())) return {};

  std::vector<Subnet> chosen;
  if (named.empty()) {
    chosen = of_zones();
  } else {
    for (const std::string& id : named) {
      const auto found = std::find_if(subnets().begin(), subnets().end(),
                                      [&](const Subnet& each) { return each.id == id; });
      if (found == subnets().end()) {
        throw Error(ErrorCode::not_found,
                    "there is no subnet " + printable(id, false) + " in " + client_.region());
      }
      chosen.push_back(*found);
    }
  }
  const json groups = config.value("SecurityGroupIds", json::array());
  std::vector<Launch::Place> places;
  for (const Subnet& subnet : chosen) {
    Launch::Place& place = places.emplace_back();
    place.zone = subnet.zone;
    if (interfaces.empty()) {
      place.config["SubnetId"] = subnet.id;
      if (groups.empty()) place.config["SecurityGroupIds"] = {group(subnet.vpc, cluster)};
      continue;
    }
    json here = interfaces;
    for (json& each : here) {
      each["SubnetId"] = subnet.id;
      if (!each.contains("Groups")) {
        each["Groups"] = groups.empty() ? json{group(subnet.vpc, cluster)} : groups;
      }
    }
    // Beside interfaces these may not be said.
    place.config["NetworkInterfaces"] = here;
    place.config["SecurityGroupIds"] = nullptr;
    place.config["SubnetId"] = nullptr;
  }
  return places;
}

const std::string& Network::group(const std::string& vpc, const ClusterId& cluster) {
  if (const auto known = groups_.find(vpc); known != groups_.end()) return known->second;
  const json said = spec_.provider.other.value("security_group", json::object());
  const std::string name =
      said.value("GroupName", ("dtrain-" + spec_.cluster_name).substr(0, kMostName));
  Group found = find_group(vpc, name);
  if (found.id.empty()) found = make_group(vpc, name, cluster);
  if (found.ours) {
    let_in(vpc, found);
  } else if (!permissions().empty() && warn_) {  // one that somebody else has made stays as it is
    Error without(ErrorCode::conflict, "IpPermissions have no effect: the security group " +
                                           printable(name, false) + ", " + found.id +
                                           ", was there before, and stays as it is");
    if (spec_.provider.rules_location.line > 0) without.at(spec_.provider.rules_location);
    warn_(without.what());
  }
  return groups_.emplace(vpc, found.id).first->second;
}

Network::Group Network::find_group(const std::string& vpc, const std::string& name) {
  const Xml answer = client_.ec2("DescribeSecurityGroups", {{"Filter.1.Name", "vpc-id"},
                                                            {"Filter.1.Value.1", vpc},
                                                            {"Filter.2.Name", "group-name"},
                                                            {"Filter.2.Value.1", name}});
  const std::vector<Xml>& found = answer.list("securityGroupInfo");
  if (found.empty()) return {};
  return {found.front().at("groupId"), tag_of(found.front(), kClusterTag) == spec_.cluster_name};
}

Network::Group Network::make_group(const std::string& vpc, const std::string& name,
                                   const ClusterId& cluster) {
  Form form = tagged("security-group", spec_.cluster_name);
  form.emplace_back("TagSpecification.1.Tag.2.Key", "dtrain-cluster-id");
  form.emplace_back("TagSpecification.1.Tag.2.Value", cluster.str());
  form.emplace_back("GroupName", name);
  form.emplace_back("GroupDescription", "nodes of dtrain cluster " + spec_.cluster_name);
  form.emplace_back("VpcId", vpc);
  has_made_ = true;
  try {
    return {client_.ec2("CreateSecurityGroup", form).at("groupId"), true, true};
  } catch (const ApiError& error) {
    // Another `up`, or this one, whose answer was lost.
    Group found;
    if (error.aws_code() == "InvalidGroup.Duplicate") found = find_group(vpc, name);
    if (found.id.empty()) throw;
    return found;
  }
}

json Network::from_here(const std::string& vpc) {
  const int port = spec_.auth.ssh_port.value_or(22);
  json permissions = json::array();
  if (!spec_.provider.use_internal_ips) {
    const std::string address = address_seen(client_);
    permissions.push_back(ssh_from(address + (is_ipv6_address(address) ? "/128" : "/32"), port));
    return permissions;
  }
  const Xml answer = client_.ec2("DescribeVpcs", {{"VpcId.1", vpc}});
  for (const Xml& each : answer.list("vpcSet")) {
    for (const Xml& range : each.list("cidrBlockAssociationSet")) {
      permissions.push_back(ssh_from(range.at("cidrBlock"), port));
    }
  }
  return permissions;
}

void Network::let_in(const std::string& vpc, const Group& group) {
  const json within = {{"IpProtocol", "-1"}, {"UserIdGroupPairs", {{{"GroupId", group.id}}}}};
  json own = from_here(vpc);
  own.insert(own.begin(), within);
  SecurityRules rules{one_by_one(own), one_by_one(permissions()), {}};
  // What leaves for everywhere does not count for EFA.
  const bool has_efa = std::any_of(spec_.node_types.begin(), spec_.node_types.end(),
                                   [](const NodeType& type) { return type.efa; });
  if (has_efa) rules.out = {within};
  put_rules(client_, group.id, group.is_new, rules);
}

void Network::follow_rules() {
  const std::lock_guard lock(mutex_);
  std::set<std::string> ids;
  client_.ec2_pages("DescribeSecurityGroups", of_cluster(spec_.cluster_name), [&](const Xml& page) {
    for (const Xml& group : page.list("securityGroupInfo")) ids.insert(group.at("groupId"));
  });
  for (const auto& [vpc, id] : groups_) ids.erase(id);  // done
  for (const std::string& id : ids) {
    put_rules(client_, id, false, {{}, one_by_one(permissions()), {}});
  }
}

json Network::permissions() const {
  const json said = spec_.provider.other.value("security_group", json::object());
  return said.value("IpPermissions", json::array());
}

}  // namespace dtrain::aws

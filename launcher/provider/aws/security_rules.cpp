#include "launcher/provider/aws/security_rules.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>

#include <nlohmann/json.hpp>

#include "launcher/core/text.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/form.hpp"
#include "launcher/spec/ec2_model.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;

constexpr const char* kDuplicate = "InvalidPermission.Duplicate";
constexpr const char* kRuleTag = "dtrain-rule";  // of those that the YAML has
constexpr std::array<std::pair<const char*, const char*>, 4> kSources{{
    {"IpRanges", "CidrIp"},
    {"Ipv6Ranges", "CidrIpv6"},
    {"PrefixListIds", "PrefixListId"},
    {"UserIdGroupPairs", "GroupId"},
}};

std::string protocol_of(const std::string& said) {
  std::string name = lower_case(said);
  constexpr std::array<std::pair<const char*, const char*>, 5> kNumbers{
      {{"1", "icmp"}, {"6", "tcp"}, {"17", "udp"}, {"58", "icmpv6"}, {"all", "-1"}}};
  for (const auto& [number, text] : kNumbers) {
    if (name == number) return text;
  }
  return name;
}

std::string canonical_range(const std::string& range) {
  boost::system::error_code failed;
  const auto v4 = boost::asio::ip::make_network_v4(range, failed);
  if (!failed) return v4.canonical().to_string();
  const auto v6 = boost::asio::ip::make_network_v6(range, failed);
  return failed ? range : v6.canonical().to_string();
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string key_of(const std::string& protocol, const std::string& from, const std::string& to,
                   const std::string& source) {
  const std::string name = protocol_of(protocol);
  const bool has_ports = name != "-1";
  const auto port = [&](const std::string& text) {
    return has_ports && !text.empty() ? text : std::string("-1");
  };
  return name + " " + port(from) + " " + port(to) + " " + canonical_range(source);
}

// Of one that is there.
std::string key_of(const Xml& rule) {
  std::string source;
  for (const char* at : {"cidrIpv4", "cidrIpv6", "prefixListId", "referencedGroupInfo/groupId"}) {
    if (source.empty()) source = rule.at(at);
  }
  return key_of(rule.at("ipProtocol"), rule.at("fromPort"), rule.at("toPort"), source);
}

std::set<std::string> keys_of(const std::vector<json>& rules) {
  std::set<std::string> keys;
  for (const json& rule : rules) keys.insert(rule_key(rule));
  return keys;
}

class Group {
 public:
  Group(Client& client, std::string id, bool is_new)
      : client_(client), id_(std::move(id)), is_new_(is_new) {}

  void put(const SecurityRules& rules) {
    if (!is_new_) revoke(look(rules));
    add("AuthorizeSecurityGroupIngress", rules.own, in_, false);
    add("AuthorizeSecurityGroupIngress", rules.said, in_, true);
    add("AuthorizeSecurityGroupEgress", rules.out, out_, false);
  }

 private:
  // Notes what is there, and gives the ids of the YAML's that it has no more.
  std::vector<std::string> look(const SecurityRules& rules) {
    std::set<std::string> wanted = keys_of(rules.said);
    wanted.merge(keys_of(rules.own));
    std::vector<std::string> stale;
    client_.ec2_pages("DescribeSecurityGroupRules",
                      {{"Filter.1.Name", "group-id"}, {"Filter.1.Value.1", id_}},
                      [&](const Xml& page) {
                        for (const Xml& rule : page.list("securityGroupRuleSet")) {
                          const bool goes_out = rule.at("isEgress") == "true";
                          std::string key = key_of(rule);
                          if (!goes_out && !wanted.contains(key) && !tag_of(rule, kRuleTag).empty())
                            stale.push_back(rule.at("securityGroupRuleId"));
                          (goes_out ? out_ : in_).insert(std::move(key));
                        }
                      });
    return stale;
  }

  void revoke(const std::vector<std::string>& ids) {
    if (ids.empty()) return;
    Form form{{"GroupId", id_}};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      form.emplace_back("SecurityGroupRuleId." + std::to_string(i + 1), ids[i]);
    }
    try {
      client_.ec2("RevokeSecurityGroupIngress", form);
    } catch (const ApiError& error) {
      // Another `up` was first, or this one, whose answer was lost; and then none of the others
      // was.
      const std::string& code = error.aws_code();
      const bool is_gone =
          code == "InvalidSecurityGroupRuleId.NotFound" || code == "InvalidPermission.NotFound";
      if (!is_gone) throw;
      if (ids.size() == 1) return;
      for (const std::string& id : ids) revoke({id});
    }
  }

  // Those that are not there; both lists stay in their order.
  void add(const char* action, const std::vector<json>& rules, std::set<std::string>& there,
           bool tagged) {
    std::vector<json> missing;
    for (const json& rule : rules) {
      if (there.insert(rule_key(rule)).second) missing.push_back(rule);
    }
    if (missing.empty() || authorize(action, missing, tagged)) return;
    // One of them is there all the same, and then none was added.
    for (const json& rule : missing) authorize(action, {rule}, tagged);
  }

  // False: one of them is there.
  bool authorize(const char* action, const std::vector<json>& rules, bool tagged) {
    Form form{{"GroupId", id_}};
    for (std::size_t i = 0; i < rules.size(); ++i) {
      flatten(rules[i], spec::kIpPermission, "IpPermissions." + std::to_string(i + 1) + ".", form);
    }
    if (tagged) {
      form.emplace_back("TagSpecification.1.ResourceType", "security-group-rule");
      form.emplace_back("TagSpecification.1.Tag.1.Key", kRuleTag);
      form.emplace_back("TagSpecification.1.Tag.1.Value", "IpPermissions");
    }
    CallOptions options;
    options.again = [this](const std::string& code) {
      return is_new_ && code == "InvalidGroup.NotFound";
    };
    try {
      client_.ec2(action, form, options);
      return true;
    } catch (const ApiError& error) {
      if (error.aws_code() != kDuplicate) throw;
      return false;
    }
  }

  Client& client_;
  const std::string id_;
  const bool is_new_;
  std::set<std::string> in_;  // what is there
  std::set<std::string> out_;
};

}  // namespace

std::vector<json> one_by_one(const json& permissions) {
  std::vector<json> rules;
  for (const json& permission : permissions) {
    json bare = permission;
    for (const auto& [list, source] : kSources) bare.erase(list);
    const std::size_t before = rules.size();
    for (const auto& [list, source] : kSources) {
      for (const json& each : permission.value(list, json::array())) {
        rules.push_back(bare);
        rules.back()[list] = json::array({each});  // {each} is a copy to some compilers
      }
    }
    if (rules.size() == before) rules.push_back(permission);  // EC2 says what is wrong with it
  }
  return rules;
}

std::string rule_key(const json& permission) {
  std::string from;
  for (const auto& [list, source] : kSources) {
    for (const json& each : permission.value(list, json::array())) from = text_at(each, source);
  }
  return key_of(text_at(permission, "IpProtocol"), text_at(permission, "FromPort"),
                text_at(permission, "ToPort"), from);
}

void put_rules(Client& client, const std::string& group, bool is_new, const SecurityRules& rules) {
  Group(client, group, is_new).put(rules);
}

}  // namespace dtrain::aws

#include "launcher/provider/aws/security_rules.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "launcher/core/text.hpp"
#include "tests/launcher/provider/aws/support.hpp"

using namespace dtrain;
using nlohmann::json;
using testing::AwsWorld;

namespace {

json ssh_from(const std::string& range) {
  return {
      {"IpProtocol", "tcp"}, {"FromPort", 22}, {"ToPort", 22}, {"IpRanges", {{{"CidrIp", range}}}}};
}

std::string there(const std::string& id, const std::string& range, bool is_ours) {
  const std::string tag =
      is_ours ? "<tagSet><item><key>dtrain-rule</key><value>IpPermissions</value></item></tagSet>"
              : "";
  return "<item><securityGroupRuleId>" + id +
         "</securityGroupRuleId><isEgress>false</isEgress><ipProtocol>tcp</ipProtocol>"
         "<fromPort>22</fromPort><toPort>22</toPort><cidrIpv4>" +
         range + "</cidrIpv4>" + tag + "</item>";
}

std::string listed(const std::vector<std::string>& rules) {
  return "<DescribeSecurityGroupRulesResponse><securityGroupRuleSet>" + join(rules, "") +
         "</securityGroupRuleSet></DescribeSecurityGroupRulesResponse>";
}

HttpAnswer done(const HttpRequest& request) {
  const std::string action = request.body.substr(request.body.find("Action=") + 7);
  const std::string name = action.substr(0, action.find('&')) + "Response";
  return {200, {}, "<" + name + "><return>true</return></" + name + ">"};
}

const char* const kDuplicate =
    "<Response><Errors><Error><Code>InvalidPermission.Duplicate</Code><Message>it is there"
    "</Message></Error></Errors></Response>";

// The actions that were asked for, with the ranges and the rules that they name.
struct Asked {
  void put(bool is_new, const aws::SecurityRules& rules) {
    aws::Client client(aws.config(), aws.world(), "us-west-2");
    put_rules(client, "sg-1", is_new, rules);
    for (const HttpRequest& request : aws.http.asked) {
      std::string text;
      std::vector<std::string> fields = split(request.body, '&');
      for (const std::string& field : fields) {
        const std::string value = field.substr(field.find('=') + 1);
        if (field.starts_with("Action=")) text = value + text;
        const bool counts = field.find("CidrIp=") != std::string::npos ||
                            field.starts_with("SecurityGroupRuleId.") ||
                            field.starts_with("TagSpecification.1.Tag.1.Key=");
        if (counts) text += " " + value;
      }
      said.push_back(text);
    }
  }

  AwsWorld aws;
  std::vector<std::string> said;
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("aws: all that a new group is to let in are two requests") {
  Asked each;
  each.aws.http.otherwise = done;
  json many = ssh_from("10.1.0.0/16");
  many["IpRanges"].push_back({{"CidrIp", "10.2.0.0/16"}});
  each.put(true, {{ssh_from("1.2.3.4/32")}, aws::one_by_one({many, ssh_from("10.3.0.0/16")}), {}});
  CHECK(
      each.said ==
      Lines{"AuthorizeSecurityGroupIngress 1.2.3.4%2F32",
            "AuthorizeSecurityGroupIngress 10.1.0.0%2F16 10.2.0.0%2F16 10.3.0.0%2F16 dtrain-rule"});
}

TEST_CASE("aws: what the YAML has no more is revoked, of its own rules alone") {
  Asked each;
  each.aws.http.says(
      200, listed({there("sgr-1", "10.1.0.0/16", true), there("sgr-2", "10.2.0.0/16", true),
                   there("sgr-3", "10.4.0.0/16", false), there("sgr-4", "1.2.3.4/32", false)}));
  each.aws.http.otherwise = done;
  each.put(false,
           {{ssh_from("1.2.3.4/32")}, {ssh_from("10.1.7.7/16"), ssh_from("10.3.0.0/16")}, {}});
  CHECK(each.said == Lines{"DescribeSecurityGroupRules", "RevokeSecurityGroupIngress sgr-2",
                           "AuthorizeSecurityGroupIngress 10.3.0.0%2F16 dtrain-rule"});
}

TEST_CASE("aws: one that is there all the same keeps no other") {
  Asked each;
  each.aws.http.says(200, listed({}));
  each.aws.http.says(400, kDuplicate);
  each.aws.http.says(400, kDuplicate);
  each.aws.http.otherwise = done;
  each.put(false, {{}, {ssh_from("10.1.0.0/16"), ssh_from("10.2.0.0/16")}, {}});
  const std::string add = "AuthorizeSecurityGroupIngress ";
  CHECK(each.said == Lines{"DescribeSecurityGroupRules",
                           add + "10.1.0.0%2F16 10.2.0.0%2F16 dtrain-rule",
                           add + "10.1.0.0%2F16 dtrain-rule", add + "10.2.0.0%2F16 dtrain-rule"});
}

TEST_CASE("aws: one that is gone already keeps no other from being revoked") {
  Asked each;
  each.aws.http.says(
      200, listed({there("sgr-1", "10.1.0.0/16", true), there("sgr-2", "10.2.0.0/16", true)}));
  const std::string gone =
      "<Response><Errors><Error><Code>InvalidSecurityGroupRuleId.NotFound</Code><Message>it is gone"
      "</Message></Error></Errors></Response>";
  each.aws.http.says(400, gone);
  each.aws.http.says(400, gone);
  each.aws.http.otherwise = done;
  each.put(false, {{}, {}, {}});
  const std::string revoke = "RevokeSecurityGroupIngress ";
  CHECK(each.said == Lines{"DescribeSecurityGroupRules", revoke + "sgr-1 sgr-2", revoke + "sgr-1",
                           revoke + "sgr-2"});
}

TEST_CASE("aws: one rule, however it is written") {
  json rule = ssh_from("10.1.0.0/16");
  const std::string key = aws::rule_key(rule);
  rule["IpProtocol"] = "6";
  rule["IpRanges"][0]["Description"] = "the office";
  CHECK(aws::rule_key(rule) == key);
  rule["ToPort"] = 23;
  CHECK(aws::rule_key(rule) != key);
  const json all = {{"IpProtocol", "-1"}, {"UserIdGroupPairs", {{{"GroupId", "sg-1"}}}}};
  json numbered = all;
  numbered["FromPort"] = 0;
  CHECK(aws::rule_key(numbered) == aws::rule_key(all));
  CHECK(aws::rule_key({{"IpProtocol", "-1"}, {"Ipv6Ranges", {{{"CidrIpv6", "FD00::1/64"}}}}}) ==
        aws::rule_key({{"IpProtocol", "-1"}, {"Ipv6Ranges", {{{"CidrIpv6", "fd00::/64"}}}}}));
}

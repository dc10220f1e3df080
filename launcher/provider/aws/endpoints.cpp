#include "launcher/provider/aws/endpoints.hpp"

#include <algorithm>
#include <array>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::aws {
namespace {

struct Partition {
  const char* prefix;  // of its regions' names
  const char* suffix;
  const char* dual_suffix;
  const char* home;  // the region that signs for IAM
  const char* iam;   // null: there is none
  const char* name;  // in ARNs
};
constexpr std::array<Partition, 8> kPartitions{{
    {"cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn", "cn-north-1",
     "iam.cn-north-1.amazonaws.com.cn", "aws-cn"},
    {"us-gov-", "amazonaws.com", "api.aws", "us-gov-west-1", "iam.us-gov.amazonaws.com",
     "aws-us-gov"},
    {"us-isob-", "sc2s.sgov.gov", "api.aws.scloud", "us-isob-east-1",
     "iam.us-isob-east-1.sc2s.sgov.gov", "aws-iso-b"},
    {"us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov", "us-isof-south-1",
     "iam.us-isof-south-1.csp.hci.ic.gov", "aws-iso-f"},
    {"us-iso-", "c2s.ic.gov", "api.aws.ic.gov", "us-iso-east-1", "iam.us-iso-east-1.c2s.ic.gov",
     "aws-iso"},
    {"eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk", "eu-isoe-west-1",
     "iam.eu-isoe-west-1.cloud.adc-e.uk", "aws-iso-e"},
    {"eusc-", "amazonaws.eu", "api.amazonwebservices.eu", "eusc-de-east-1",
     "iam.eusc-de-east-1.amazonaws.eu", "aws-eusc"},
    {"", "amazonaws.com", "api.aws", "us-east-1", "iam.amazonaws.com", "aws"},
}};

const Partition& partition_of(const std::string& region) {
  return *std::find_if(kPartitions.begin(), kPartitions.end(),
                       [&](const Partition& each) { return region.starts_with(each.prefix); });
}

bool is_region(const std::string& text) {
  return !text.empty() && text.size() <= 63 && text.front() != '-' && text.back() != '-' &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

bool wants(const Config& config, const char* variable, const char* setting) {
  const std::string said = config.setting(variable, setting).value_or("");
  return said == "true" || said == "True" || said == "TRUE";
}

std::string checked(const std::string& url) {
  const bool scheme = url.starts_with("https://") || url.starts_with("http://");
  const std::size_t host = url.find("://") + 3;
  if (!scheme || url.size() == host || url[host] == '/' ||
      url.find_first_of("?# \t\r\n@") != std::string::npos) {
    throw Error(ErrorCode::invalid,
                "an endpoint of AWS's must be http(s)://HOST[:PORT][/PATH], not " +
                    printable(url.substr(0, 60), false));
  }
  return url;
}

}  // namespace

const char* to_string(Service service) noexcept {
  switch (service) {
    case Service::ec2:
      return "ec2";
    case Service::sts:
      return "sts";
    case Service::ssm:
      return "ssm";
    case Service::iam:
      return "iam";
    case Service::sso:
      return "sso";
    case Service::pricing:
      return "pricing";
  }
  return "?";
}

std::string arn_partition(const std::string& region) {
  return partition_of(region).name;
}

Endpoint endpoint_of(Service service, const std::string& region, const Config& config,
                     const std::string& url) {
  if (!is_region(region)) {
    throw Error(ErrorCode::invalid,
                printable(region.substr(0, 60), false) + " is no region of AWS's")
        .with_hint("for example: us-west-2");
  }
  const Partition& partition = partition_of(region);
  const std::string name = to_string(service);
  const bool is_global = service == Service::iam || service == Service::pricing;
  Endpoint endpoint{service, "", {is_global ? partition.home : region, name}};
  if (!url.empty()) {
    endpoint.url = checked(url);
    return endpoint;
  }
  if (const auto configured = config.endpoint(name)) {
    endpoint.url = checked(*configured);
    return endpoint;
  }
  if (service == Service::iam) {
    endpoint.url = std::string("https://") + partition.iam;
    return endpoint;
  }
  if (service == Service::pricing) {
    endpoint.url = std::string("https://api.pricing.") + partition.home + "." + partition.suffix;
    return endpoint;
  }
  if (service == Service::sso) {
    endpoint.url = "https://portal.sso." + region + "." + partition.suffix;
    return endpoint;
  }
  const bool fips = wants(config, "AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint");
  const bool dual = wants(config, "AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint");
  // In the United States' government's regions the plain names are FIPS's.
  const bool named_fips = fips && !(partition.prefix == std::string("us-gov-") && !dual);
  endpoint.url = "https://" + name + (named_fips ? "-fips." : ".") + region + "." +
                 (dual ? partition.dual_suffix : partition.suffix);
  return endpoint;
}

}  // namespace dtrain::aws

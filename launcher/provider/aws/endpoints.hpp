#pragma once

#include <cstdint>
#include <string>

#include "launcher/provider/aws/config.hpp"
#include "launcher/provider/aws/signature.hpp"

namespace dtrain::aws {

enum class Service : std::uint8_t { ec2, sts, ssm, iam, sso, pricing };
const char* to_string(Service service) noexcept;

struct Endpoint {
  Service service = Service::ec2;
  std::string url;
  SigningScope scope;
};

// Where a service of a region is. `url`: the YAML's own, which counts more than what the user's
// configuration says; empty: none. FIPS and dual stack as that says. Throws Error(invalid) for what
// is no region's name, or no URL.
Endpoint endpoint_of(Service service, const std::string& region, const Config& config,
                     const std::string& url = {});

// "aws", "aws-cn": what ARNs of a region begin with, after "arn:".
std::string arn_partition(const std::string& region);

}  // namespace dtrain::aws

#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "launcher/provider/aws/api.hpp"

namespace dtrain::aws {

// A value of one of the API's shapes (launcher/spec/ec2_model.hpp) as EC2's forms have it, in
// `form`: "BlockDeviceMapping.1.Ebs.VolumeSize" and "100", with `prefix` before each name. null is
// left out. Throws Error(invalid) for what ec2_problems() finds.
void flatten(const nlohmann::json& value, std::string_view shape, const std::string& prefix,
             Form& form);

}  // namespace dtrain::aws

#include "launcher/provider/aws/efa.hpp"

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::aws {

nlohmann::json efa_interfaces(Client& client, const std::string& type) {
  const Xml answer = client.ec2("DescribeInstanceTypes", {{"InstanceType.1", type}});
  const std::vector<Xml>& types = answer.list("instanceTypeSet");
  const Xml none;
  const Xml& said = types.empty() ? none : types.front();
  if (said.at("networkInfo/efaSupported") != "true") {
    throw Error(ErrorCode::invalid,
                "efa: " + printable(type, false) + " has no Elastic Fabric Adapter");
  }
  const int most =
      number_from<int>(said.at("networkInfo/efaInfo/maximumEfaInterfaces")).value_or(1);
  nlohmann::json interfaces = nlohmann::json::array();
  for (int card = 0; card < most; ++card) {
    interfaces.push_back(
        {{"NetworkCardIndex", card}, {"DeviceIndex", card == 0 ? 0 : 1}, {"InterfaceType", "efa"}});
  }
  return interfaces;
}

}  // namespace dtrain::aws

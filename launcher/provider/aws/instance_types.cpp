#include "launcher/provider/aws/instance_types.hpp"

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::aws {

InstanceType instance_type(Client& client, const std::string& name) {
  const Xml answer = client.ec2("DescribeInstanceTypes", {{"InstanceType.1", name}});
  const std::vector<Xml>& types = answer.list("instanceTypeSet");
  if (types.empty()) {
    throw Error(ErrorCode::not_found, "there is no instance type " + printable(name, false));
  }
  const Xml& said = types.front();
  InstanceType type;
  type.cpus = number_from<int>(said.at("vCpuInfo/defaultVCpus")).value_or(0);
  for (const Xml& kind : said.list("gpuInfo/gpus")) {
    type.gpus += number_from<int>(kind.at("count")).value_or(0);
  }
  type.memory = number_from<std::uint64_t>(said.at("memoryInfo/sizeInMiB")).value_or(0) << 20;
  return type;
}

}  // namespace dtrain::aws

#include "launcher/provider/aws/instance_types.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::aws {
namespace {

InstanceType type_of(const Xml& said) {
  InstanceType type;
  type.cpus = number_from<int>(said.at("vCpuInfo/defaultVCpus")).value_or(0);
  for (const Xml& kind : said.list("gpuInfo/gpus")) {
    type.gpus += number_from<int>(kind.at("count")).value_or(0);
  }
  type.memory = number_from<std::uint64_t>(said.at("memoryInfo/sizeInMiB")).value_or(0) << 20;
  return type;
}

}  // namespace

InstanceType least_of(Client& client, const std::vector<std::string>& names) {
  Form form;
  std::set<std::string> missing;
  for (const std::string& name : names) {
    if (name.empty() || !missing.insert(name).second) continue;
    form.emplace_back("InstanceType." + std::to_string(missing.size()), name);
  }
  InstanceType least{std::numeric_limits<int>::max(), std::numeric_limits<int>::max(),
                     std::numeric_limits<std::uint64_t>::max()};
  const Xml answer = client.ec2("DescribeInstanceTypes", form);
  for (const Xml& said : answer.list("instanceTypeSet")) {
    missing.erase(said.at("instanceType"));
    const InstanceType type = type_of(said);
    least.cpus = std::min(least.cpus, type.cpus);
    least.gpus = std::min(least.gpus, type.gpus);
    least.memory = std::min(least.memory, type.memory);
  }
  if (missing.empty()) return least;
  throw Error(ErrorCode::not_found,
              "there is no instance type " + printable(*missing.begin(), false));
}

}  // namespace dtrain::aws

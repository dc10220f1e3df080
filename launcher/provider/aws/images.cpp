#include "launcher/provider/aws/images.hpp"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/ec2_model.hpp"

namespace dtrain::aws {
namespace {

struct Alias {
  const char* name;
  const char* parameter;  // of SSM; null: there is none
  const char* owner;      // an account, or an alias of one
  const char* images;     // their names
};
constexpr std::array<Alias, 3> kAliases{{
    {spec::kImageAliases[0].data(),
     "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
     "amazon", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)*"},
    {spec::kImageAliases[1].data(),
     "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
     "099720109477", "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"},
    {"latest_amazon_linux", "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
     "amazon", "al2023-ami-2023*-x86_64"},
}};
constexpr Alias kOldGpus{"latest_dlami", nullptr, "amazon",
                         "Deep Learning Base Proprietary Nvidia Driver GPU AMI (Ubuntu*"};

// NVIDIA's open driver begins with Turing.
bool has_old_gpus(std::string_view instance_type) {
  for (const std::string_view family : {"p2.", "p3.", "p3dn.", "g3.", "g3s."}) {
    if (instance_type.starts_with(family)) return true;
  }
  return false;
}

// Empty: there is no such parameter, or it may not be read.
std::string by_parameter(Client& client, const char* parameter) {
  try {
    const nlohmann::json answer = client.ssm("GetParameter", {{"Name", parameter}});
    return answer.at("Parameter").at("Value").get<std::string>();
  } catch (const nlohmann::json::exception&) {
    return {};
  } catch (const ApiError& error) {
    if (error.aws_code() != "ParameterNotFound" && error.code() != ErrorCode::denied) throw;
    return {};
  }
}

std::string newest(Client& client, const Alias& alias) {
  std::string best;
  std::string created;
  client.ec2_pages("DescribeImages",
                   {{"Owner.1", alias.owner},
                    {"IncludeDeprecated", "true"},
                    {"Filter.1.Name", "name"},
                    {"Filter.1.Value.1", alias.images},
                    {"Filter.2.Name", "state"},
                    {"Filter.2.Value.1", "available"}},
                   [&](const Xml& page) {
                     for (const Xml& image : page.list("imagesSet")) {
                       const std::string time = image.at("creationDate");  // RFC 3339
                       if (time < created && !best.empty()) continue;
                       best = image.at("imageId");
                       created = time;
                     }
                   });
  return best;
}

}  // namespace

std::string image_of(Client& client, const std::string& image, const std::string& instance_type) {
  std::string name = image.empty() ? kAliases.front().name : image;
  const auto alias = std::find_if(kAliases.begin(), kAliases.end(),
                                  [&](const Alias& each) { return name == each.name; });
  if (alias == kAliases.end() && spec::is_image(name)) return name;
  if (alias == kAliases.end()) {
    throw Error(ErrorCode::invalid, "ImageId: " + printable(name, false) + " is no image")
        .with_hint(spec::image_hint());
  }
  const bool is_dlami = alias == kAliases.begin();
  const Alias& wanted = is_dlami && has_old_gpus(instance_type) ? kOldGpus : *alias;
  std::string found = wanted.parameter == nullptr ? "" : by_parameter(client, wanted.parameter);
  if (found.empty()) found = newest(client, wanted);
  if (found.empty()) {
    throw Error(ErrorCode::not_found, "there is no image for " + name + " in " + client.region() +
                                          ": none is called " + wanted.images)
        .with_hint("name one: ImageId: ami-…");
  }
  return found;
}

}  // namespace dtrain::aws

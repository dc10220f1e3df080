#include "launcher/provider/aws/launch_template.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/form.hpp"

namespace dtrain::aws {

void look_at_template(Client& client, nlohmann::json& config) {
  const auto named = config.find("LaunchTemplate");
  if (named == config.end()) return;
  Form form;
  flatten(*named, "LaunchTemplateSpecification", "", form);
  const auto version = std::find_if(form.begin(), form.end(),
                                    [](const auto& each) { return each.first == "Version"; });
  const std::string wanted = version == form.end() ? "$Default" : version->second;
  if (version != form.end()) form.erase(version);
  form.emplace_back("LaunchTemplateVersion.1", wanted);
  const nlohmann::json::json_pointer own("/InstanceMarketOptions/SpotOptions/SpotInstanceType");
  const bool says_otherwise = config.contains(own);  // which is not persistent, and goes first
  const Xml answer = client.ec2("DescribeLaunchTemplateVersions", form);
  for (const Xml& each : answer.list("launchTemplateVersionSet")) {
    const std::string number = each.at("versionNumber");
    if (!says_otherwise &&
        each.at("launchTemplateData/instanceMarketOptions/spotOptions/spotInstanceType") ==
            "persistent") {
      throw Error(ErrorCode::invalid,
                  "LaunchTemplate: version " + printable(number, false) + " of " +
                      printable(each.at("launchTemplateName"), false) +
                      " has the SpotInstanceType persistent: such a request makes a machine anew "
                      "for each that is given back")
          .with_hint("one-time there, or in node_config, will do");
    }
    (*named)["Version"] = number;
  }
}

}  // namespace dtrain::aws

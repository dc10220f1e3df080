#include "launcher/provider/aws/heads_instances.hpp"

#include <map>
#include <optional>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain::aws {

namespace {

// Whatever is in this machine's environment and home is somebody else's: its own role asks.
std::optional<std::string> of_the_machine(const std::string& name) {
  if (name == "AWS_CONFIG_FILE" || name == "AWS_SHARED_CREDENTIALS_FILE") return "/dev/null";
  if (name.starts_with("AWS_EC2_METADATA_")) return process_variables()(name);
  return std::nullopt;
}

}  // namespace

BOOST_DESCRIBE_STRUCT(CloudPlace, (), (region, endpoint))

nlohmann::json to_json(const CloudPlace& place) {
  return wire::written(place);
}

HeadsInstances::HeadsInstances(const std::string& cluster_name, const fs::path& notes,
                               const wire::WantedMachines& wanted) {
  CloudPlace place;
  wire::read(wanted.config, place);
  std::map<std::string, Launch> launches;
  for (const wire::WantedMachines::Type& type : wanted.types) {
    while_doing("reading what machines of type " + type.name + " are made by",
                [&] { launches.emplace(type.name, launch_from_json(type.config)); });
  }
  Config config(of_the_machine);
  http_ = make_http(config.ca_bundle());
  client_ =
      std::make_unique<Client>(std::move(config), real_world(*http_), place.region, place.endpoint);
  instances_ = std::make_unique<Instances>(
      *client_, cluster_name, notes, [launches = std::move(launches)](const Request& request) {
        const auto found = launches.find(request.type);
        if (found != launches.end() && found->second.wrong.empty()) return found->second;
        if (found != launches.end()) throw Error(ErrorCode::invalid, found->second.wrong);
        throw Error(ErrorCode::not_found,
                    "nobody said what type " + printable(request.type, false) + " is");
      });
}

HeadsInstances::~HeadsInstances() = default;

}  // namespace dtrain::aws

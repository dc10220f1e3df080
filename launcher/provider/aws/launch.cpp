#include "launcher/provider/aws/launch.hpp"

#include <algorithm>

#include "launcher/wire/fields.hpp"

namespace dtrain::aws {

void fields(wire::Is<Launch::Place> auto& m, auto&& f) {
  f("zone", m.zone, "config", m.config);
}

void fields(wire::Is<Launch> auto& m, auto&& f) {
  f("config", m.config, "places", m.places, "settings", m.settings, "user", m.user, "tags", m.tags,
    "is_fresh", m.is_fresh, "wrong", wire::or_default(m.wrong));
}

nlohmann::json to_json(const Launch& launch) {
  return wire::written(launch);
}

Launch launch_from_json(const nlohmann::json& json) {
  Launch launch;
  wire::read(json, launch);
  return launch;
}

nlohmann::json config_of(const NodeType& type) {
  nlohmann::json config = nlohmann::json::object();
  config.merge_patch(type.node_config);
  return config;
}

std::string text_of(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> instance_types_of(const NodeType& type, const nlohmann::json& config) {
  std::vector<std::string> kinds{text_of(config, "InstanceType")};
  for (const std::string& kind : type.fallback_instance_types) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

bool is_wrong(const Error& error) {
  return error.code() == ErrorCode::invalid || error.code() == ErrorCode::not_found;
}

}  // namespace dtrain::aws

#include "launcher/provider/aws/launch.hpp"

#include "launcher/wire/fields.hpp"

namespace dtrain::aws {

void fields(wire::Is<Launch::Place> auto& m, auto&& f) {
  f("zone", m.zone, "config", m.config);
}

void fields(wire::Is<Launch> auto& m, auto&& f) {
  f("config", m.config, "places", m.places, "settings", m.settings, "user", m.user, "tags", m.tags,
    "is_fresh", m.is_fresh);
}

nlohmann::json to_json(const Launch& launch) {
  return wire::written(launch);
}

Launch launch_from_json(const nlohmann::json& json) {
  Launch launch;
  wire::read(json, launch);
  return launch;
}

}  // namespace dtrain::aws

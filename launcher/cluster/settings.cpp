#include "launcher/cluster/settings.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/provider/wanted_types.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {

SettingsApplied apply_settings(const fs::path& socket, const ClusterSpec& spec) {
  try {
    const wire::ApiClient client(socket, spec.cluster_name);
    const nlohmann::json answer = client.post("/v1/settings", to_json(spec.storage));
    SettingsApplied applied;
    applied.changed = wire::get_bool(answer, "changed", false);
    if (answer.contains("warnings")) applied.warnings = wire::get_strings(answer, "warnings");
    return applied;
  } catch (Error& error) {
    if (error.code() != ErrorCode::not_found) {
      error.while_doing("telling the head what it may delete");
      throw;
    }
    if (spec.storage == StorageSpec{}) return {};  // an older head deletes by its own rules
    throw Error(ErrorCode::conflict,
                "the head's agent is too old for `retention` and `content_cache_size`")
        .with_hint("dtrain up without --no-restart brings it up to date");
  }
}

void apply_node_types(const fs::path& socket, const ClusterSpec& spec,
                      const std::vector<Machine>& made) {
  if (spec.node_types.empty()) return;
  wire::NodeTypes types = node_types(spec, !traits_of(spec.provider.kind).asks_by_resources);
  const bool says_any = std::any_of(types.types.begin(), types.types.end(), [](const auto& type) {
    wire::NodeTypes::Type nothing;
    nothing.name = type.name;
    return type != nothing;
  });
  for (const Machine& machine : made) types.nodes[machine.node.str()] = machine.type;
  try {
    wire::ApiClient(socket, spec.cluster_name).post("/v1/node_types", wire::to_json(types));
  } catch (Error& error) {
    if (error.code() != ErrorCode::not_found) {
      error.while_doing("telling the head what nodes of each type have");
      throw;
    }
    if (!says_any) return;
    throw Error(ErrorCode::conflict,
                "the head's agent is too old for `resources` and `labels` of node types")
        .with_hint("dtrain up without --no-restart brings it up to date");
  }
}

}  // namespace dtrain

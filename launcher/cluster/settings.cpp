#include "launcher/cluster/settings.hpp"

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
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

}  // namespace dtrain

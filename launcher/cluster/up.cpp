#include "launcher/cluster/up.hpp"

#include <nlohmann/json.hpp>

#include "launcher/cluster/up_parts.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/version.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {

const char* to_string(NodeProgress::State state) noexcept {
  switch (state) {
    case NodeProgress::State::at_work:
      return "at_work";
    case NodeProgress::State::waiting:
      return "waiting";
    case NodeProgress::State::done:
      return "done";
    case NodeProgress::State::ready:
      return "ready";
    case NodeProgress::State::failed:
      return "failed";
  }
  return "?";
}

std::optional<std::vector<std::pair<NodeId, std::string>>> nodes_not_ready(
    const fs::path& socket, const std::string& cluster, const std::vector<Machine>& nodes) {
  try {
    const wire::ApiClient client(socket, cluster);
    if (!client.answers()) return std::nullopt;
    const nlohmann::json status = client.get("/v1/status", std::chrono::seconds(5));
    std::vector<std::pair<NodeId, std::string>> missing;
    // A head of an earlier version says nothing of this.
    const std::string problem =
        wire::get_string(wire::member(wire::member(status, "cluster"), "head"), "problem", "");
    for (const Machine& machine : nodes) {
      std::string said = "not heard of";
      for (const nlohmann::json& node : wire::member(status, "nodes")) {
        if (wire::get_string(node, "node") != machine.node.str()) continue;
        said = wire::get_string(node, "state");
        const std::string reason = wire::get_string(node, "reason", "");
        if (said != "ready" && !reason.empty()) said += ", " + reason;
      }
      if (said == "ready") continue;
      if (!problem.empty()) said += "; the head: " + problem;
      missing.emplace_back(machine.node, said);
    }
    return missing;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void refuse_downgrade(const std::string& running, const std::string& wanted) {
  if (!is_newer_version(running, wanted)) return;
  throw Error(ErrorCode::conflict, "the agents that are there are of dtrain " + running +
                                       ", which is newer than this one's, " + wanted)
      .with_hint("use dtrain " + running + " or later; --downgrade replaces them all the same, " +
                 "and --no-restart leaves them as they are");
}

UpReport up(const ClusterSpec& spec, const UpOptions& options) {
  if (!valid_cluster_name(spec.cluster_name)) {
    throw Error(ErrorCode::invalid, "\"" + spec.cluster_name + "\" cannot be a cluster's name");
  }
  make_provider(spec, paths::cluster_state(spec.cluster_name));  // a provider that is not built yet
  const ClusterLock lock = ClusterLock::take(spec.cluster_name, [&] {
    options.say("another up or down of " + spec.cluster_name + " is at work: waiting for it");
  });
  return spec.provider.kind == ProviderKind::local ? up_local(spec, options)
                                                   : up_hosts(spec, options);
}

}  // namespace dtrain

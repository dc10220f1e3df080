#include "launcher/cluster/door.hpp"

#include <cstdlib>

#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/agent_session.hpp"
#include "launcher/remote/ssh/transport.hpp"

namespace dtrain {

std::unique_ptr<Provider> provider_of(const ClusterState& state, const Access& access) {
  ClusterSpec spec;
  spec.cluster_name = state.name;
  for (const ProviderEntry& entry : providers()) {
    if (state.provider == entry.name) spec.provider.kind = entry.kind;
  }
  for (const Machine& machine : state.nodes) {
    if (machine.host) spec.provider.hosts.push_back(*machine.host);
  }
  return make_provider(spec, paths::cluster_state(state.name), access);
}

HeadDoor HeadDoor::open(const ClusterState& state, Provider& provider) {
  HeadDoor door;
  if (state.nodes.empty()) throw Error(ErrorCode::internal, "a cluster without nodes");
  door.transport_ = provider.reach(state.nodes.front());
  if (auto* ssh = dynamic_cast<SshTransport*>(door.transport_.get());
      ssh != nullptr && !state.head_socket.empty()) {
    ssh->use_head_socket(state.head_socket.string(),
                         {state.agent, "bridge", "--root", state.head_root.string()});
  }
  door.socket_ = door.transport_->head_socket(state.head_root);
  return door;
}

HeadDoor HeadDoor::open(const std::string& cluster_name, const Access& access) {
  HeadDoor door;
  const char* variable = std::getenv("DTRAIN_HEAD_SOCKET");
  if (variable != nullptr && *variable != '\0') {
    door.socket_ = variable;
    return door;
  }
  const std::optional<ClusterState> state = load_cluster(cluster_name);
  if (!state) {
    throw Error(ErrorCode::unreachable, "cluster " + cluster_name + " is not up")
        .with_hint("dtrain up CLUSTER.yaml");
  }
  if (state->nodes.empty() || !state->nodes.front().host) {
    door.socket_ = paths::head_socket(state->head_root);
    return door;
  }
  std::unique_ptr<Provider> provider = provider_of(*state, access);
  door = open(*state, *provider);
  door.provider_ = std::move(provider);
  return door;
}

std::string base_of(const ClusterState& state) {
  const nlohmann::json provider = state.spec.is_object()
                                      ? state.spec.value("provider", nlohmann::json::object())
                                      : nlohmann::json::object();
  return provider.value("root", "");
}

namespace {

// Any folder in which clusters are kept.
bool has_anything(Transport& transport, const std::string& base) {
  std::string folder = base;
  if (folder == "~" || folder.starts_with("~/"))
    folder = "$HOME" + shell_quote(folder.substr(1));
  else if (!folder.empty())
    folder = shell_quote(folder);
  std::string script =
      "[ -d \"$HOME/.dtrain\" ] || [ -d \"${DTRAIN_SPARE_ROOT:-/var/tmp/dtrain-$(id -u)}\" ]";
  if (!folder.empty()) script += " || [ -d " + folder + " ]";
  return transport.run({"/bin/sh", "-c", script}, {}, std::chrono::seconds(30)).exit.code == 0;
}

}  // namespace

std::optional<ClusterState> adopt(const ClusterSpec& spec, const fs::path& agent,
                                  const Access& access) {
  const std::unique_ptr<Provider> provider =
      make_provider(spec, paths::cluster_state(spec.cluster_name), access);
  const std::vector<Machine> machines = provider->list();
  const std::unique_ptr<Transport> transport = provider->reach(machines.front());
  if (!has_anything(*transport, spec.provider.root)) return std::nullopt;
  AgentSession session = AgentSession::open(*transport, AgentBinary::load(agent));
  const wire::FoundClusters found = session.find_clusters({spec.cluster_name, spec.provider.root});
  if (found.clusters.empty()) return std::nullopt;
  const wire::HeadFound& head = found.clusters.front();
  ClusterState state = remembered(spec, ClusterId(head.cluster));
  state.nodes = machines;
  state.head_root = head.root;
  state.head_socket = paths::head_socket_of(head.root);
  state.agent = session.hello().agent;
  state.prepared = true;
  const ClusterLock lock = ClusterLock::take(spec.cluster_name, nullptr);
  save_cluster(state);
  return state;
}

}  // namespace dtrain

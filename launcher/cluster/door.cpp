#include "launcher/cluster/door.hpp"

#include <algorithm>
#include <cstdlib>

#include "launcher/cluster/plan.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/agent_session.hpp"

namespace dtrain {
namespace {

Error not_up(const std::string& cluster) {
  return Error(ErrorCode::unreachable, "cluster " + cluster + " is not up")
      .with_hint("dtrain up CLUSTER.yaml");
}

// What is there of a machine that was made, and is not reached as the notes have it: reached, where
// it has another address now; else why it is not, as far as its provider knows more than `error`.
std::unique_ptr<Transport> reach_made(const ClusterState& state, Provider& provider,
                                      const Error& error) {
  const Machine& noted = state.nodes.front();
  std::vector<Machine> there;
  try {
    there = provider.list();
  } catch (const Error&) {  // whoever may not ask knows no more
    throw Error(error);
  }
  const auto found = std::find_if(there.begin(), there.end(),
                                  [&](const Machine& each) { return each.id == noted.id; });
  const std::string machine = "the machine of its head, " + noted.id + ", is ";
  if (found == there.end() || found->state == MachineState::stopping) {
    throw Error(ErrorCode::unreachable, "cluster " + state.name + " is not up: " + machine +
                                            (found == there.end() ? "gone" : "being given back"))
        .with_hint("dtrain down clears up what it has left, dtrain up makes it anew");
  }
  if (found->state == MachineState::stopped) {
    const bool by_itself = state.spec.is_object() && state.spec.contains("down_when_idle");
    throw Error(ErrorCode::unreachable,
                "cluster " + state.name + " is not up: " + machine + "stopped" +
                    (found->reason.empty() ? "" : " (" + found->reason + ")") +
                    (by_itself ? ", as down_when_idle does when nothing has run for long" : ""))
        .with_hint("dtrain up " + (state.source.empty() ? "CLUSTER.yaml" : state.source) +
                   " brings it back, with its jobs, logs and results");
  }
  const bool has_moved =
      found->state == MachineState::running &&
      (found->address != noted.address || found->external_address != noted.external_address);
  if (!has_moved) throw Error(error);
  return provider.reach(*found);
}

}  // namespace

std::unique_ptr<Provider> provider_of(const ClusterState& state, const Access& access) {
  const ProviderEntry* entry = provider_named(state.provider);
  if (entry == nullptr) {
    throw Error(ErrorCode::invalid, "cluster " + state.name + " is up with provider " +
                                        state.provider + ", which this dtrain does not know");
  }
  ClusterSpec spec = state.spec.is_object() ? cluster_spec_from_json(state.spec) : ClusterSpec();
  spec.cluster_name = state.name;
  spec.provider.kind = entry->kind;
  // Those that are there, not those that the YAML had.
  spec.provider.hosts.clear();
  for (const Machine& machine : state.nodes) {
    if (machine.host) spec.provider.hosts.push_back(*machine.host);
  }
  return make_provider(spec, paths::cluster_state(state.name), access);
}

HeadDoor HeadDoor::open(const ClusterState& state, Provider& provider) {
  HeadDoor door;
  // Notes of machines that an `up` has made, and no head yet.
  if (state.nodes.empty() || state.head_root.empty()) throw not_up(state.name);
  try {
    door.transport_ = provider.reach(state.nodes.front());
  } catch (const Error& error) {
    if (state.nodes.front().id.empty()) throw;
    door.transport_ = reach_made(state, provider, error);
  }
  door.socket_ =
      door.transport_->head_socket({state.head_root,
                                    state.head_socket,
                                    {state.agent, "bridge", "--root", state.head_root.string()}});
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
  if (!state) throw not_up(cluster_name);
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

std::optional<ClusterState> cluster_on(const Machine& machine, const ClusterSpec& spec,
                                       Provider& provider, const fs::path& agent) {
  const std::unique_ptr<Transport> transport = provider.reach(machine);
  if (!has_anything(*transport, spec.provider.root)) return std::nullopt;
  AgentSession session = AgentSession::open(*transport, AgentBinary::load(agent));
  for (const wire::HeadFound& head :
       session.find_clusters({spec.cluster_name, spec.provider.root}).clusters) {
    if (!machine.cluster.empty() && head.cluster != machine.cluster.str()) continue;
    ClusterState state = remembered(spec, ClusterId(head.cluster));
    state.nodes = {machine};
    state.head_root = head.root;
    state.head_socket = paths::head_socket_of(head.root);
    state.agent = session.hello().agent;
    state.prepared = true;
    return state;
  }
  return std::nullopt;
}

std::optional<ClusterState> adopt(const ClusterSpec& spec, Provider& provider,
                                  const fs::path& agent, bool to_end, const Access& access) {
  const std::vector<Machine> there = provider.list();
  const ClusterPlan plan = decide(wanted_nodes(spec), {there, {}, {}}, false);
  if (!plan.refused.empty() && !to_end) {
    throw Error(ErrorCode::conflict, plan.refused).with_hint("dtrain down gives them back");
  }
  std::vector<Machine> machines;
  for (const NodePlan& each : plan.nodes) {
    if (each.action != NodeAction::create) machines.push_back(each.machine);
  }
  if (to_end) {  // those too that go already, and those that the head has asked for
    for (const Machine& machine : there) {
      const bool is_planned =
          std::any_of(machines.begin(), machines.end(),
                      [&](const Machine& each) { return each.id == machine.id; });
      if (machine.state != MachineState::gone && !is_planned) machines.push_back(machine);
    }
  }
  if (machines.empty()) return std::nullopt;
  const Machine& head = machines.front();
  const bool made = !head.id.empty();
  std::optional<ClusterState> state;
  try {
    if (head.head && head.state == MachineState::running) {
      state = cluster_on(head, spec, provider, agent);
    }
  } catch (const Error&) {
    if (!made) throw;
  }
  if (state) {
    state->nodes = machines;
  } else if (made) {
    state = remembered(spec, plan.cluster.empty() ? head.cluster : plan.cluster);
  }
  if (!state) return std::nullopt;
  const ClusterLock lock = ClusterLock::take(
      spec.cluster_name,
      [&] {
        if (!access.warn) return;
        access.warn("another up or down of " + spec.cluster_name + " is at work: waiting for it");
      },
      access.stop);
  // What that one has written knows more.
  if (auto written = load_cluster(spec.cluster_name)) return written;
  save_cluster(*state);
  if (made) {
    try {
      provider.list();  // now that it is known it notes where these are
    } catch (const Error& error) {
      log::debug("where the machines are is noted later", {{"why", error.what()}});
    }
  }
  return state;
}

std::optional<ClusterState> adopt(const ClusterSpec& spec, const fs::path& agent,
                                  const Access& access, bool to_end) {
  const std::unique_ptr<Provider> provider =
      make_provider(spec, paths::cluster_state(spec.cluster_name), access);
  return adopt(spec, *provider, agent, to_end, access);
}

}  // namespace dtrain

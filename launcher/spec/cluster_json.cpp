#include <string>

#include "launcher/core/error.hpp"
#include "launcher/spec/host_fields.hpp"

// A ClusterSpec and its parts as JSON, and back.
namespace dtrain {

using nlohmann::json;
using wire::if_set;
using wire::or_default;

namespace {

ProviderKind provider_of(const std::string& name) {
  for (const ProviderKind kind : kProviderKinds) {
    if (name == to_string(kind)) return kind;
  }
  throw Error(ErrorCode::invalid, "\"" + name + "\" is no provider");
}

}  // namespace

template <>
inline constexpr auto wire::kReader<ProviderKind> = provider_of;

void fields(wire::Is<ProviderSpec> auto& m, auto&& f) {
  f("type", or_default(m.kind), "root", or_default(m.root), "head_address",
    or_default(m.head_address), "head_port", if_set(m.head_port), "use_internal_ips",
    or_default(m.use_internal_ips), "cache_stopped_nodes", or_default(m.cache_stopped_nodes),
    "other", or_default(m.other));
  if (m.kind == ProviderKind::local) f("nodes", or_default(m.local_nodes));
  if (m.kind == ProviderKind::ssh) f("hosts", or_default(m.hosts));
}

void fields(wire::Is<AuthSpec> auto& m, auto&& f) {
  f("ssh_user", or_default(m.ssh_user), "ssh_port", or_default(m.ssh_port), "ssh_private_key",
    or_default(m.ssh_private_key), "ssh_public_key", or_default(m.ssh_public_key),
    "ssh_proxy_command", or_default(m.ssh_proxy_command), "ssh_proxy_jump",
    or_default(m.ssh_proxy_jump));
}

void fields(wire::Is<NodeType> auto& m, auto&& f) {
  f("node_config", or_default(m.node_config), "resources", or_default(m.resources), "labels",
    or_default(m.labels), "min_workers", or_default(m.min_workers), "max_workers",
    if_set(m.max_workers), "idle_timeout_s", if_set(m.idle_timeout_s), "priority",
    or_default(m.priority, wire::kAnyInt), "fallback_instance_types",
    or_default(m.fallback_instance_types), "on_demand_fallback", or_default(m.on_demand_fallback),
    "placement_group", or_default(m.placement_group), "efa", or_default(m.efa));
  f("initialization_commands", or_default(m.initialization_commands), "worker_setup_commands",
    if_set(m.worker_setup_commands));
}

void fields(wire::Is<ReadySpec> auto& m, auto&& f) {
  f("command", or_default(m.command), "gpus", or_default(m.gpus), "timeout_s",
    or_default(m.timeout));
}

void fields(wire::Is<DownWhenIdle> auto& m, auto&& f) {
  f("minutes", m.minutes, "terminate", or_default(m.terminate));
}

// All but the lists that are objects, by name, and `storage`, whose keys stand among these.
void fields(wire::Is<ClusterSpec> auto& m, auto&& f) {
  f("cluster_name", or_default(m.cluster_name), "max_workers", or_default(m.max_workers),
    "upscaling_speed", or_default(m.upscaling_speed), "idle_timeout_minutes",
    or_default(m.idle_timeout_minutes), "max_cost_per_hour", if_set(m.max_cost_per_hour),
    "provider", or_default(m.provider), "auth", or_default(m.auth), "head_node_type",
    or_default(m.head_node_type), "cluster_synced_files", or_default(m.cluster_synced_files),
    "file_mounts_sync_continuously", or_default(m.file_mounts_sync_continuously));
  f("rsync_exclude", or_default(m.rsync_exclude), "rsync_filter", or_default(m.rsync_filter),
    "initialization_commands", or_default(m.initialization_commands), "setup_commands",
    or_default(m.setup_commands), "head_setup_commands", or_default(m.head_setup_commands),
    "worker_setup_commands", or_default(m.worker_setup_commands), "ready", or_default(m.ready),
    "down_when_idle", if_set(m.down_when_idle));
}

json to_json(const ClusterSpec& spec) {
  json out = wire::written(spec);
  json& types = out["available_node_types"] = json::object();
  for (const NodeType& type : spec.node_types) types[type.name] = wire::written(type);
  json& mounts = out["file_mounts"] = json::object();
  for (const FileMount& mount : spec.file_mounts) mounts[mount.remote] = mount.local;
  out.update(to_json(spec.storage));
  return out;
}

ClusterSpec cluster_spec_from_json(const json& value) {
  try {
    ClusterSpec spec;
    wire::read(value, spec);
    const json types = value.value("available_node_types", json::object());
    for (const auto& [name, type] : types.items()) {
      spec.node_types.emplace_back().name = name;
      wire::read(type, spec.node_types.back());
    }
    const json mounts = value.value("file_mounts", json::object());
    for (const auto& [remote, local] : mounts.items()) {
      spec.file_mounts.push_back({remote, wire::as_string(local, "file_mounts")});
    }
    spec.storage = storage_spec_from_json(value);
    return spec;
  } catch (Error& error) {
    error.while_doing("reading what is kept of a cluster");
    throw;
  }
}

}  // namespace dtrain

#include <chrono>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/spec/cluster_spec.hpp"

// A ClusterSpec as JSON, and back.
namespace dtrain {

using nlohmann::json;

json to_json(const ClusterSpec& spec) {
  json provider{{"type", to_string(spec.provider.kind)},
                {"root", spec.provider.root},
                {"head_address", spec.provider.head_address},
                {"use_internal_ips", spec.provider.use_internal_ips},
                {"cache_stopped_nodes", spec.provider.cache_stopped_nodes},
                {"other", spec.provider.other}};
  if (spec.provider.head_port) provider["head_port"] = *spec.provider.head_port;
  if (spec.provider.kind == ProviderKind::local) provider["nodes"] = spec.provider.local_nodes;
  if (spec.provider.kind == ProviderKind::ssh) {
    json hosts = json::array();
    for (const HostSpec& host : spec.provider.hosts) hosts.push_back(to_json(host));
    provider["hosts"] = std::move(hosts);
  }

  json types = json::object();
  for (const NodeType& type : spec.node_types) {
    json one{{"node_config", type.node_config},
             {"resources", type.resources},
             {"labels", type.labels},
             {"min_workers", type.min_workers},
             {"priority", type.priority},
             {"initialization_commands", type.initialization_commands}};
    if (type.max_workers) one["max_workers"] = *type.max_workers;
    if (type.idle_timeout_s) one["idle_timeout_s"] = *type.idle_timeout_s;
    if (type.worker_setup_commands) one["worker_setup_commands"] = *type.worker_setup_commands;
    types[type.name] = std::move(one);
  }

  json mounts = json::object();
  for (const FileMount& mount : spec.file_mounts) mounts[mount.remote] = mount.local;
  json storage = to_json(spec.storage);

  return json{{"cluster_name", spec.cluster_name},
              {"max_workers", spec.max_workers},
              {"upscaling_speed", spec.upscaling_speed},
              {"idle_timeout_minutes", spec.idle_timeout_minutes},
              {"provider", std::move(provider)},
              {"auth",
               {{"ssh_user", spec.auth.ssh_user},
                {"ssh_private_key", spec.auth.ssh_private_key},
                {"ssh_public_key", spec.auth.ssh_public_key},
                {"ssh_proxy_command", spec.auth.ssh_proxy_command},
                {"ssh_proxy_jump", spec.auth.ssh_proxy_jump},
                {"ssh_port", spec.auth.ssh_port ? json(*spec.auth.ssh_port) : json()}}},
              {"head_node_type", spec.head_node_type},
              {"available_node_types", std::move(types)},
              {"file_mounts", std::move(mounts)},
              {"cluster_synced_files", spec.cluster_synced_files},
              {"file_mounts_sync_continuously", spec.file_mounts_sync_continuously},
              {"rsync_exclude", spec.rsync_exclude},
              {"rsync_filter", spec.rsync_filter},
              {"initialization_commands", spec.initialization_commands},
              {"setup_commands", spec.setup_commands},
              {"head_setup_commands", spec.head_setup_commands},
              {"worker_setup_commands", spec.worker_setup_commands},
              {"retention", std::move(storage["retention"])},
              {"content_cache_size", std::move(storage["content_cache_size"])},
              {"ready",
               {{"command", spec.ready.command},
                {"gpus", spec.ready.gpus ? json(*spec.ready.gpus) : json()},
                {"timeout_s", spec.ready.timeout.count()}}}};
}

namespace {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename Value>
void read(const json& from, const char* key, Value& into) {
  const auto found = from.find(key);
  if (found == from.end() || found->is_null()) return;
  if constexpr (IsOptional<Value>::value) {
    into = found->get<typename Value::value_type>();
  } else {
    found->get_to(into);
  }
}

const json& part(const json& from, const char* key) {
  static const json kNothing = json::object();
  const auto found = from.find(key);
  return found == from.end() ? kNothing : *found;
}

ProviderSpec provider_from_json(const json& from) {
  ProviderSpec provider;
  std::string type = to_string(provider.kind);
  read(from, "type", type);
  bool is_known = false;
  for (const ProviderKind kind : kProviderKinds) {
    if (type != to_string(kind)) continue;
    provider.kind = kind;
    is_known = true;
  }
  if (!is_known) throw Error(ErrorCode::invalid, "\"" + type + "\" is no provider");
  read(from, "root", provider.root);
  read(from, "head_address", provider.head_address);
  read(from, "head_port", provider.head_port);
  read(from, "nodes", provider.local_nodes);
  read(from, "use_internal_ips", provider.use_internal_ips);
  read(from, "cache_stopped_nodes", provider.cache_stopped_nodes);
  read(from, "other", provider.other);
  for (const json& host : part(from, "hosts")) provider.hosts.push_back(host_spec_from_json(host));
  return provider;
}

NodeType node_type_from_json(const std::string& name, const json& from) {
  NodeType type;
  type.name = name;
  read(from, "node_config", type.node_config);
  read(from, "resources", type.resources);
  read(from, "labels", type.labels);
  read(from, "min_workers", type.min_workers);
  read(from, "max_workers", type.max_workers);
  read(from, "idle_timeout_s", type.idle_timeout_s);
  read(from, "priority", type.priority);
  read(from, "initialization_commands", type.initialization_commands);
  read(from, "worker_setup_commands", type.worker_setup_commands);
  return type;
}

ClusterSpec spec_from(const json& from) {
  ClusterSpec spec;
  read(from, "cluster_name", spec.cluster_name);
  read(from, "max_workers", spec.max_workers);
  read(from, "upscaling_speed", spec.upscaling_speed);
  read(from, "idle_timeout_minutes", spec.idle_timeout_minutes);
  spec.provider = provider_from_json(part(from, "provider"));
  const json& auth = part(from, "auth");
  read(auth, "ssh_user", spec.auth.ssh_user);
  read(auth, "ssh_port", spec.auth.ssh_port);
  read(auth, "ssh_private_key", spec.auth.ssh_private_key);
  read(auth, "ssh_public_key", spec.auth.ssh_public_key);
  read(auth, "ssh_proxy_command", spec.auth.ssh_proxy_command);
  read(auth, "ssh_proxy_jump", spec.auth.ssh_proxy_jump);
  read(from, "head_node_type", spec.head_node_type);
  for (const auto& [name, type] : part(from, "available_node_types").items()) {
    spec.node_types.push_back(node_type_from_json(name, type));
  }
  for (const auto& [remote, local] : part(from, "file_mounts").items()) {
    spec.file_mounts.push_back({remote, local.get<std::string>()});
  }
  read(from, "cluster_synced_files", spec.cluster_synced_files);
  read(from, "file_mounts_sync_continuously", spec.file_mounts_sync_continuously);
  read(from, "rsync_exclude", spec.rsync_exclude);
  read(from, "rsync_filter", spec.rsync_filter);
  read(from, "initialization_commands", spec.initialization_commands);
  read(from, "setup_commands", spec.setup_commands);
  read(from, "head_setup_commands", spec.head_setup_commands);
  read(from, "worker_setup_commands", spec.worker_setup_commands);
  spec.storage = storage_spec_from_json(from);
  const json& ready = part(from, "ready");
  read(ready, "command", spec.ready.command);
  read(ready, "gpus", spec.ready.gpus);
  auto timeout_s = spec.ready.timeout.count();
  read(ready, "timeout_s", timeout_s);
  spec.ready.timeout = std::chrono::seconds(timeout_s);
  return spec;
}

}  // namespace

ClusterSpec cluster_spec_from_json(const json& value) {
  try {
    return spec_from(value);
  } catch (const json::exception& error) {
    throw Error(ErrorCode::invalid, std::string("not a cluster: ") + error.what());
  }
}

}  // namespace dtrain

#include "launcher/spec/cluster_spec.hpp"

#include <algorithm>
#include <set>

#include "launcher/core/text.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/limits.hpp"

namespace dtrain {

const char* to_string(ProviderKind kind) noexcept {
  switch (kind) {
    case ProviderKind::local:
      return "local";
    case ProviderKind::ssh:
      return "ssh";
    case ProviderKind::aws:
      return "aws";
    case ProviderKind::gcp:
      return "gcp";
    case ProviderKind::azure:
      return "azure";
    case ProviderKind::kubernetes:
      return "kubernetes";
    case ProviderKind::slurm:
      return "slurm";
  }
  return "?";
}

std::vector<PromisedNode> ClusterSpec::promised() const {
  std::vector<PromisedNode> nodes;
  if (provider.kind == ProviderKind::local) {
    for (int i = 0; i < provider.local_nodes; ++i) {
      nodes.push_back({NodeId("node-" + std::to_string(i)), ""});
    }
    return nodes;
  }
  if (provider.kind == ProviderKind::ssh) {
    for (const HostSpec& host : provider.hosts) nodes.push_back({host.node, ""});
    return nodes;
  }
  if (provider.kind == ProviderKind::slurm) {
    if (!head_moves()) return {{NodeId(kLoginNode), ""}};
    return {{NodeId(kHeadNode), head_node_type}};
  }
  nodes.push_back({NodeId(), head_node_type});
  for (const Workers& each : workers()) {
    for (int i = 0; i < each.count; ++i) nodes.push_back({NodeId(), each.type});
  }
  return nodes;
}

std::vector<ClusterSpec::Workers> ClusterSpec::workers() const {
  std::vector<Workers> result;
  const int most_of_all = std::clamp(max_workers, 0, limits::kNodes);
  int left = most_of_all;
  for (const NodeType& type : node_types) {
    const bool is_head = type.name == head_node_type;
    const int most =
        std::clamp(type.max_workers.value_or(is_head ? 0 : most_of_all), 0, most_of_all);
    const int wanted = std::min(type.min_workers, most);
    result.push_back({type.name, std::clamp(wanted, 0, left), most});
    left -= result.back().count;
  }
  return result;
}

bool is_spot(const nlohmann::json& node_config) {
  const auto market = node_config.find("InstanceMarketOptions");
  if (market == node_config.end() || !market->is_object()) return false;
  const auto kind = market->find("MarketType");
  return kind != market->end() && *kind == "spot";
}

bool ClusterSpec::has_type(const std::string& name) const {
  return std::any_of(node_types.begin(), node_types.end(),
                     [&](const NodeType& type) { return type.name == name; });
}

bool ClusterSpec::grows() const {
  const std::vector<Workers> all = workers();
  for (std::size_t i = 0; i < all.size(); ++i) {  // one of each type
    const bool may_be_lost = all[i].count > 0 && is_spot(node_types[i].node_config);
    if (all[i].most > all[i].count || may_be_lost) return true;
  }
  return false;
}

namespace spec {
namespace {

constexpr double kLarge = 1e9;

void check_commands(const Path& path, const std::vector<std::string>& commands, Checks& checks) {
  for (std::size_t i = 0; i < commands.size(); ++i) {
    Path item = path;
    item.push_back("[" + std::to_string(i) + "]");
    if (checks.text(item, commands[i], limits::kScriptLength) && commands[i].empty()) {
      checks.add(item, "is empty");
    }
  }
}

bool check_user(const Path& path, const std::string& user, Checks& checks) {
  if (valid_user(user)) return true;
  checks.add(path,
             user.empty() ? "is empty"
                          : shown(user) +
                                " is no login name: letters, digits and . _ @ + -, not "
                                "beginning with -",
             "for example: ssh_user: ubuntu");
  return false;
}

// [user@]host[:port], as in OpenSSH's ProxyJump.
void check_jumps(const Path& path, const std::vector<std::string>& jumps, Checks& checks) {
  constexpr std::size_t kMostJumps = 8;
  if (jumps.size() > kMostJumps) {
    checks.add(path, "has more than " + std::to_string(kMostJumps) + " hosts");
  }
  for (std::size_t i = 0; i < jumps.size(); ++i) {
    if (!parse_jump(jumps[i])) {
      checks.add(with(path, "[" + std::to_string(i) + "]"),
                 shown(jumps[i]) + " is no host to go through",
                 "for example: ssh_proxy_jump: [me@bastion:22]");
    }
  }
}

void check_hosts(const std::vector<HostSpec>& hosts, Checks& checks) {
  if (hosts.empty()) {
    checks.add({"provider", "hosts"}, "is empty", "for example: hosts: [gpu-1, gpu-2]");
    return;
  }
  if (hosts.size() > static_cast<std::size_t>(limits::kNodes)) {
    checks.add({"provider", "hosts"}, "has more than " + std::to_string(limits::kNodes) + " hosts");
    return;
  }
  std::set<std::string> nodes;
  std::set<std::string> addresses;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostSpec& host = hosts[i];
    const Path path{"provider", "hosts", "[" + std::to_string(i) + "]"};
    if (!checks.host(with(path, "host"), host.host)) continue;
    const std::string place =
        host.ssh_user + "@" + host.host + ":" + std::to_string(host.ssh_port.value_or(0));
    if (!addresses.insert(place).second) {
      checks.add(path, shown(host.host) + (host.host == hosts.front().host ? " is the head too"
                                                                           : " is there twice"));
      continue;
    }
    if (!host.node.empty() && checks.name(with(path, "node"), host.node.str(), "node: gpu-1") &&
        !nodes.insert(host.node.str()).second) {
      checks.add(with(path, "node"), shown(host.node.str()) + " is there twice",
                 "give one of them another name: node: NAME");
    }
    if (!host.address.empty()) checks.host(with(path, "address"), host.address);
    if (!host.ssh_user.empty()) check_user(with(path, "ssh_user"), host.ssh_user, checks);
    if (host.ssh_port) {
      checks.range(with(path, "ssh_port"), *host.ssh_port, 1, limits::kPort);
    }
    if (!host.ssh_private_key.empty()) {
      checks.absolute(with(path, "ssh_private_key"), host.ssh_private_key);
    }
    checks.text(with(path, "ssh_proxy_command"), host.ssh_proxy_command, limits::kScriptLength);
    check_jumps(with(path, "ssh_proxy_jump"), host.ssh_proxy_jump, checks);
  }
}

void check_provider(const ProviderSpec& provider, Checks& checks) {
  if (!provider.root.empty()) checks.absolute_or_home({"provider", "root"}, provider.root);
  if (!provider.head_address.empty()) {
    checks.host({"provider", "head_address"}, provider.head_address);
  }
  if (provider.head_port) {
    checks.range({"provider", "head_port"}, *provider.head_port, 1, limits::kPort);
  }
  if (provider.kind == ProviderKind::local) {
    checks.range({"provider", "nodes"}, provider.local_nodes, 1, limits::kLocalNodes);
  }
  if (provider.kind == ProviderKind::ssh) check_hosts(provider.hosts, checks);
}

void check_auth(const AuthSpec& auth, ProviderKind kind, Checks& checks) {
  // Empty with hosts that exist: ssh's own.
  const bool has_hosts = kind == ProviderKind::ssh || kind == ProviderKind::slurm;
  if (!auth.ssh_user.empty() || !has_hosts) {
    check_user({"auth", "ssh_user"}, auth.ssh_user, checks);
  }
  if (auth.ssh_port) checks.range({"auth", "ssh_port"}, *auth.ssh_port, 1, limits::kPort);
  check_jumps({"auth", "ssh_proxy_jump"}, auth.ssh_proxy_jump, checks);
  if (!auth.ssh_private_key.empty()) {
    checks.absolute({"auth", "ssh_private_key"}, auth.ssh_private_key);
  }
  if (!auth.ssh_public_key.empty()) {
    checks.absolute({"auth", "ssh_public_key"}, auth.ssh_public_key);
  }
  checks.text({"auth", "ssh_proxy_command"}, auth.ssh_proxy_command, limits::kScriptLength);
}

// As with Ray, what stands ready may be there too: a type that names no bound has the cluster's,
// that of the head none.
void check_min_workers(const ClusterSpec& spec, Checks& checks) {
  std::int64_t all = 0;
  for (const NodeType& type : spec.node_types) {
    const bool is_head = type.name == spec.head_node_type;
    const int most = type.max_workers.value_or(is_head ? 0 : spec.max_workers);
    const auto too_many = [&](const std::string& is, const std::string& bound) {
      checks.add({"available_node_types", type.name, "min_workers"}, is + ", more than " + bound,
                 "max_workers of a type is 0 for the head's where it is absent, else that of the "
                 "cluster, and this one is 2");
    };
    if (type.min_workers > most) {
      too_many("is " + std::to_string(type.min_workers),
               "max_workers, which is " + std::to_string(most));
      continue;
    }
    all += type.min_workers;
    if (all <= spec.max_workers) continue;
    too_many("makes it " + std::to_string(all) + " of all types",
             "max_workers of the cluster, which is " + std::to_string(spec.max_workers));
    return;
  }
}

void check_node_type(const NodeType& type, Checks& checks) {
  const Path path{"available_node_types", type.name};
  const auto at = [&](const char* key) {
    Path longer = path;
    longer.emplace_back(key);
    return longer;
  };
  checks.name(path, type.name, "gpu.worker");
  checks.range(at("min_workers"), type.min_workers, 0, limits::kNodes);
  if (type.max_workers) {
    checks.range(at("max_workers"), *type.max_workers, 0, limits::kNodes);
  }
  for (const auto& [name, amount] : type.resources) {
    Path item = at("resources");
    item.push_back(name);
    if (checks.text(item, name, limits::kMetricNameLength)) {
      checks.range(item, amount, 0, static_cast<double>(limits::kMemory));
    }
  }
  for (const auto& [name, value] : type.labels) {
    Path item = at("labels");
    item.push_back(name);
    if (checks.text(item, name, limits::kMetricNameLength)) {
      checks.text(item, value, limits::kArgumentLength);
    }
  }
  check_commands(at("initialization_commands"), type.initialization_commands, checks);
  if (type.worker_setup_commands) {
    check_commands(at("worker_setup_commands"), *type.worker_setup_commands, checks);
  }
}

void check_node_types(const ClusterSpec& spec, Checks& checks) {
  std::set<std::string> names;
  for (const NodeType& type : spec.node_types) {
    if (!names.insert(type.name).second) {
      checks.add({"available_node_types", type.name}, "is there twice");
    }
    check_node_type(type, checks);
  }
  check_min_workers(spec, checks);
  const bool named = names.contains(spec.head_node_type);
  const bool needed =
      spec.provider.kind != ProviderKind::local && spec.provider.kind != ProviderKind::ssh;
  const bool has_head_type = needed && spec.provider.kind != ProviderKind::slurm;
  if (needed && spec.node_types.empty()) {
    checks.add({"available_node_types"}, "is missing: what kinds of nodes there are",
               "for example: available_node_types: {head: {node_config: {}}}");
  } else if (!named && (has_head_type || !spec.head_node_type.empty())) {
    const auto near =
        nearest(spec.head_node_type, std::vector<std::string>(names.begin(), names.end()));
    checks.add({"head_node_type"},
               spec.head_node_type.empty()
                   ? "is missing: which of available_node_types the head is"
                   : shown(spec.head_node_type) + " is not one of available_node_types",
               near ? "did you mean " + printable(*near, false) + "?" : "");
  }
}

void check_files(const ClusterSpec& spec, Checks& checks) {
  for (const FileMount& mount : spec.file_mounts) {
    const Path path{"file_mounts", mount.remote};
    if (mount.remote.empty()) {
      checks.add(path, "the path on the nodes is empty");
    } else {
      checks.absolute_or_home(path, mount.remote);
    }
    checks.absolute(path, mount.local);
  }
  const auto list = [&](const char* key, const std::vector<std::string>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Path path{key, "[" + std::to_string(i) + "]"};
      if (checks.text(path, items[i], limits::kPathLength) && items[i].empty()) {
        checks.add(path, "is empty");
      }
    }
  };
  list("cluster_synced_files", spec.cluster_synced_files);
  list("rsync_exclude", spec.rsync_exclude);
  list("rsync_filter", spec.rsync_filter);
}

void check_down_when_idle(const ClusterSpec& spec, Checks& checks) {
  if (!spec.down_when_idle) return;
  if (spec.provider.kind != ProviderKind::aws) {
    checks.add({"down_when_idle"}, "is for provider aws: one of " +
                                       std::string(to_string(spec.provider.kind)) +
                                       " does not go down by itself");
    return;
  }
  checks.range({"down_when_idle", "minutes"}, spec.down_when_idle->minutes,
               limits::kLeastIdleMinutes, kLarge);
  for (const NodeType& type : spec.node_types) {
    const bool is_head = type.name == spec.head_node_type;
    if (!is_head || spec.down_when_idle->terminate || !is_spot(type.node_config)) continue;
    checks.add({"down_when_idle"}, "the head is a spot machine, which cannot be stopped",
               "head: terminate takes it away with all that is on it");
  }
}

void check_storage(const StorageSpec& storage, Checks& checks) {
  if (storage.retention_days) {
    checks.range({"retention", "days"}, *storage.retention_days, 1, limits::kRetentionDays);
  }
  const auto bytes = [&](const Path& path, const std::optional<std::uint64_t>& value,
                         std::uint64_t least) {
    if (!value || (*value >= least && *value <= limits::kMemory)) return;
    checks.add(path, "must be " + std::to_string(least) + " bytes to 1 EiB, not " +
                         std::to_string(*value));
  };
  bytes({"retention", "size"}, storage.retention_size, 1);
  bytes({"content_cache_size"}, storage.content_cache_size, 0);
}

}  // namespace

std::vector<Problem> problems_of(const ClusterSpec& spec) {
  Checks checks;
  checks.name({"cluster_name"}, spec.cluster_name, "cluster_name: local", kClusterNameLength);
  checks.range({"max_workers"}, spec.max_workers, 0, limits::kNodes);
  checks.range({"upscaling_speed"}, spec.upscaling_speed, 0, kLarge);
  checks.range({"idle_timeout_minutes"}, spec.idle_timeout_minutes, 0, kLarge);
  if (spec.max_cost_per_hour) {
    checks.range({"max_cost_per_hour"}, *spec.max_cost_per_hour, limits::kLeastCost, kLarge);
  }
  check_provider(spec.provider, checks);
  check_auth(spec.auth, spec.provider.kind, checks);
  check_node_types(spec, checks);
  check_files(spec, checks);
  check_commands({"initialization_commands"}, spec.initialization_commands, checks);
  check_commands({"setup_commands"}, spec.setup_commands, checks);
  check_commands({"head_setup_commands"}, spec.head_setup_commands, checks);
  check_commands({"worker_setup_commands"}, spec.worker_setup_commands, checks);
  checks.text({"ready", "command"}, spec.ready.command, limits::kScriptLength);
  check_down_when_idle(spec, checks);
  check_storage(spec.storage, checks);
  return checks.take();
}

}  // namespace spec

std::vector<Error> validate(const ClusterSpec& spec) {
  return spec::to_errors(spec::problems_of(spec));
}

}  // namespace dtrain

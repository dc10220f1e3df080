#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/text.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/spec/readers.hpp"
#include "launcher/spec/values.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain {
namespace spec {
namespace {

using nlohmann::json;

// The keys of ProviderSpec that have a field of their own.
bool common_provider_key(std::string_view name) {
  static constexpr std::array<std::string_view, 13> kNames{"type",
                                                           "root",
                                                           "head_address",
                                                           "head_port",
                                                           "use_internal_ips",
                                                           "nodes",
                                                           "head_ip",
                                                           "worker_ips",
                                                           "external_head_ip",
                                                           "cache_stopped_nodes",
                                                           "module",
                                                           "coordinator_address",
                                                           "hosts"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

class ClusterReader {
 public:
  ClusterReader(const Tree& tree, Source source)
      : tree_(tree), source_(source), top_(&tree.root(), cluster_table(), {}, source, explain) {}

  ClusterSpec read() {
    spec_.source = source_.expander.file();
    spec_.cluster_name = top_.text("cluster_name");
    spec_.max_workers = static_cast<int>(top_.whole("max_workers"));
    spec_.upscaling_speed = top_.number("upscaling_speed");
    spec_.idle_timeout_minutes = top_.number("idle_timeout_minutes");
    read_provider();
    read_auth();
    read_files();
    read_commands();
    read_ready();
    read_storage();
    read_node_types(top_, tree_, source_, spec_);
    read_docker(top_.mapping("docker"), tree_, source_.report);
    for (const char* name : {"initial_workers", "autoscaling_mode", "target_utilization_fraction",
                             "worker_default_node_type", "head_start_ray_commands",
                             "worker_start_ray_commands", "no_restart", "metadata"}) {
      top_.skip(name);
    }
    top_.finish();
    report_problems(problems_of(spec_), tree_, source_.report,
                    [this](const Path& path) { return moved(path); });
    return std::move(spec_);
  }

 private:
  static std::string explain(const std::string& key) {
    if (key == "command" || key == "nproc_per_node" || key == "nnodes") {
      return "this is a job YAML: give it to dtrain submit";
    }
    if (provider_table(ProviderKind::ssh).find(key) != nullptr || key == "nodes") {
      return "it belongs under provider";
    }
    if (auth_table().find(key) != nullptr) return "it belongs under auth";
    if (ready_table().find(key) != nullptr) return "it belongs under ready";
    if (retention_table().find(key) != nullptr) return "it belongs under retention";
    return "";
  }

  // Where in the file hosts and the parts of the old form stand.
  Path moved(const Path& path) const {
    if (path.size() >= 3 && path[0] == "provider" && path[1] == "hosts") {
      const auto host = static_cast<std::size_t>(std::stoul(path[2].substr(1)));
      Path there = host < host_paths_.size() ? host_paths_[host] : path;
      if (path.size() > 3 && there.size() > 1 && there[1] == "hosts") there.push_back(path[3]);
      return there;
    }
    if (path.size() < 2 || path[0] != "available_node_types") return path;
    if (path[1] != kLegacyHead && path[1] != kLegacyWorker) return path;
    const bool top = path.size() == 3 && path[2].ends_with("_workers");
    Path there(path.begin() + 2, path.end());
    if (!top) there.insert(there.begin(), path[1] == kLegacyHead ? "head_node" : "worker_nodes");
    return there;
  }

  void read_provider() {
    const Node* node = top_.special("provider");
    if (node == nullptr) return;
    const Path path{"provider"};
    if (node->kind != Node::Kind::mapping) {
      source_.report.problem(path, node->place, "must be a mapping, not " + node->kind_name(),
                             "for example: provider: {type: local}");
      return;
    }
    const std::optional<ProviderKind> kind = provider_kind(*node, path);
    if (!kind) return;
    Mapping provider(node, provider_table(*kind), path, source_,
                     [&](const std::string& key) { return whose(key, *kind); });
    ProviderSpec& out = spec_.provider;
    out.kind = *kind;
    provider.choice("type");
    out.root = provider.text("root");
    out.head_address = provider.text("head_address");
    if (const auto port = provider.optional_whole("head_port")) {
      out.head_port = static_cast<int>(*port);
    }
    out.use_internal_ips = provider.boolean("use_internal_ips");
    out.cache_stopped_nodes = provider.boolean("cache_stopped_nodes");
    provider.skip("disable_node_updaters");
    provider.skip("module");
    if (*kind == ProviderKind::local || *kind == ProviderKind::ssh) {
      read_hosts(provider, *kind);
    } else {
      read_others(provider, *kind);
    }
    provider.finish();
  }

  std::optional<ProviderKind> provider_kind(const Node& node, const Path& path) {
    Mapping probe(nullptr, provider_table(ProviderKind::local), path, source_);
    const Node* type = node.find("type");
    const Path at = with(path, "type");
    if (type == nullptr || type->kind == Node::Kind::null) {
      source_.report.problem(at, type == nullptr ? node.place : type->place,
                             type == nullptr ? "is missing" : "is empty",
                             "for example: provider: {type: local}");
      return std::nullopt;
    }
    const auto word = probe.word(*type, at, true);
    if (!word) return std::nullopt;
    std::vector<std::string> names;
    for (const ProviderKind kind : kProviderKinds) {
      if (*word == to_string(kind)) return kind;
      names.emplace_back(to_string(kind));
    }
    const auto near = nearest(*word, names);
    source_.report.problem(
        at, type->place, shown(*word) + " is not a provider here; there are: " + join(names, ", "),
        near ? "did you mean " + *near + "?" : "");
    return std::nullopt;
  }

  // For a key that another provider has.
  static std::string whose(const std::string& key, ProviderKind kind) {
    std::vector<std::string> owners;
    for (const ProviderKind each : kProviderKinds) {
      if (each != kind && provider_table(each).find(key) != nullptr) {
        owners.emplace_back(to_string(each));
      }
    }
    return owners.empty() ? "" : "it belongs to provider " + join(owners, ", ");
  }

  void read_hosts(Mapping& provider, ProviderKind kind) {
    ProviderSpec& out = spec_.provider;
    const std::string head_ip = provider.text("head_ip");
    const std::vector<std::string> worker_ips = provider.texts("worker_ips");
    const std::string external_head_ip = provider.text("external_head_ip");
    provider.skip("coordinator_address");
    if (provider.has("coordinator_address")) {
      provider.problem("coordinator_address", "Ray's coordinator does not exist here",
                       "list the hosts: head_ip: HOST and worker_ips: [HOST, …]");
    }
    if (kind == ProviderKind::local) {
      out.local_nodes = static_cast<int>(provider.whole("nodes"));
      if (provider.has("head_ip")) {
        out.kind = ProviderKind::ssh;  // Ray's local: machines that exist
        if (provider.has("nodes")) {
          provider.problem("nodes", "there are hosts (head_ip), so none are simulated",
                           "either nodes: N for this machine, or head_ip and worker_ips");
        }
        out.local_nodes = 1;
      } else if (!worker_ips.empty()) {
        provider.problem("worker_ips", "there is no head_ip", "for example: head_ip: 10.0.0.5");
      }
    } else if (const spec::Node* hosts = provider.special("hosts")) {
      for (const char* name : {"head_ip", "worker_ips", "external_head_ip"}) {
        if (provider.has(name)) provider.problem(name, "hosts says all that it says");
      }
      read_host_list(*hosts, provider.path_of("hosts"));
    } else if (!provider.has("head_ip")) {
      provider.problem("head_ip", "is missing: the host that is the head",
                       "for example: head_ip: 10.0.0.5, or hosts: [10.0.0.5, 10.0.0.6]");
    }
    if (provider.has("head_ip")) {
      HostSpec head;
      head.host = external_head_ip.empty() ? head_ip : external_head_ip;
      if (!external_head_ip.empty()) head.address = head_ip;
      host_paths_.push_back(
          provider.path_of(external_head_ip.empty() ? "head_ip" : "external_head_ip"));
      out.hosts.push_back(std::move(head));
      for (std::size_t i = 0; i < worker_ips.size(); ++i) {
        HostSpec host;
        host.host = worker_ips[i];
        host_paths_.push_back(with(provider.path_of("worker_ips"), "[" + std::to_string(i) + "]"));
        out.hosts.push_back(std::move(host));
      }
    }
    limit_hosts();
  }

  void read_host_list(const spec::Node& list, const Path& path) {
    if (list.kind != Node::Kind::sequence || list.items.empty()) {
      source_.report.problem(path, list.place,
                             list.kind == Node::Kind::sequence
                                 ? "is empty"
                                 : "must be a list, not " + list.kind_name(),
                             "for example: hosts: [gpu-1, gpu-2]");
      return;
    }
    for (std::size_t i = 0; i < list.items.size() && source_.report.open(); ++i) {
      const Node& item = *list.items[i];
      const Path at = with(path, "[" + std::to_string(i) + "]");
      HostSpec host;
      if (item.kind == Node::Kind::mapping) {
        Mapping mapping(&item, host_table(), at, source_);
        host.host = mapping.text("host");
        host.node = NodeId(mapping.text("node"));
        host.address = mapping.text("address");
        host.ssh_user = mapping.text("ssh_user");
        if (const auto port = mapping.optional_whole("ssh_port")) {
          host.ssh_port = static_cast<int>(*port);
        }
        host.ssh_private_key = mapping.path_text("ssh_private_key");
        host.ssh_proxy_command = mapping.text("ssh_proxy_command");
        host.ssh_proxy_jump = mapping.texts("ssh_proxy_jump");
        mapping.finish();
      } else {
        Mapping probe(nullptr, host_table(), at, source_);
        const auto word = probe.word(item, at, true, "hosts: [gpu-1, gpu-2]");
        if (!word) continue;
        host.host = *word;
        // What is none of these is told of as a host that cannot be.
        if (const auto place = parse_jump(*word)) {
          host.host = place->host;
          host.ssh_user = place->user;
          host.ssh_port = place->port;
        }
      }
      host_paths_.push_back(at);
      spec_.provider.hosts.push_back(std::move(host));
    }
  }

  // max_workers wins over the list, as in Ray; absent, it is the whole list.
  void limit_hosts() {
    ProviderSpec& out = spec_.provider;
    if (out.kind == ProviderKind::local) {
      spec_.max_workers = out.local_nodes - 1;
      return;
    }
    const int workers = std::max(static_cast<int>(out.hosts.size()) - 1, 0);
    if (top_.has("max_workers") && spec_.max_workers < workers) {
      source_.report.warning({"max_workers"}, tree_.place({"max_workers"}),
                             "is " + std::to_string(spec_.max_workers) + ": the last " +
                                 std::to_string(workers - spec_.max_workers) +
                                 " of the workers are left out");
      out.hosts.resize(static_cast<std::size_t>(spec_.max_workers) + 1);
    }
    spec_.max_workers =
        std::min(std::max(static_cast<int>(out.hosts.size()) - 1, 0), limits::kNodes);
  }

  void read_others(Mapping& provider, ProviderKind kind) {
    json& other = spec_.provider.other;
    for (const Key& key : provider_table(kind).keys) {
      if (common_provider_key(key.name) || key.name == "disable_node_updaters") continue;
      const char* name = key.name.c_str();
      if (key.use != Use::honoured) {
        provider.skip(name);
      } else if (key.shape.kind == Shape::Kind::open) {
        json value = provider.open(name);
        if (!value.empty()) other[key.name] = std::move(value);
      } else if (key.shape.kind == Shape::Kind::boolean) {
        other[key.name] = provider.boolean(name);
      } else if (provider.has(name) || !key.fallback.is_null()) {
        other[key.name] = provider.text(name);
      } else {
        provider.skip(name);
      }
    }
  }

  void read_auth() {
    Mapping auth = top_.mapping("auth");
    spec_.auth.ssh_user = auth.text("ssh_user");
    const bool hosts = spec_.provider.kind == ProviderKind::ssh;
    if (hosts && !auth.has("ssh_user")) spec_.auth.ssh_user.clear();
    if (const auto port = auth.optional_whole("ssh_port")) {
      spec_.auth.ssh_port = static_cast<int>(*port);
    }
    spec_.auth.ssh_private_key = auth.path_text("ssh_private_key");
    spec_.auth.ssh_public_key = auth.path_text("ssh_public_key");
    spec_.auth.ssh_proxy_command = auth.text("ssh_proxy_command");
    spec_.auth.ssh_proxy_jump = auth.texts("ssh_proxy_jump");
    auth.finish();
    for (HostSpec& host : spec_.provider.hosts) complete(host);
  }

  // What the host itself does not say, auth says for all.
  void complete(HostSpec& host) const {
    const AuthSpec& auth = spec_.auth;
    if (host.ssh_user.empty()) host.ssh_user = auth.ssh_user;
    if (!host.ssh_port) host.ssh_port = auth.ssh_port;
    if (host.ssh_private_key.empty()) host.ssh_private_key = auth.ssh_private_key;
    if (host.ssh_proxy_command.empty() && host.ssh_proxy_jump.empty()) {
      host.ssh_proxy_command = auth.ssh_proxy_command;
      host.ssh_proxy_jump = auth.ssh_proxy_jump;
    }
    if (host.node.empty()) host.node = node_of_host(host.host);
  }

  void read_ready() {
    Mapping ready = top_.mapping("ready");
    spec_.ready.command = ready.text("command");
    if (const auto gpus = ready.optional_whole("gpus")) spec_.ready.gpus = static_cast<int>(*gpus);
    spec_.ready.timeout = std::chrono::seconds(ready.whole("timeout_s"));
    ready.finish();
  }

  void read_storage() {
    Mapping retention = top_.mapping("retention");
    if (const auto days = retention.optional_whole("days")) {
      spec_.storage.retention_days = static_cast<int>(*days);
    }
    spec_.storage.retention_size = scalar_value(retention, "size", source_.report, parse_bytes);
    retention.finish();
    spec_.storage.content_cache_size =
        scalar_value(top_, "content_cache_size", source_.report, parse_bytes);
  }

  void read_files() {
    for (const Entry& entry : top_.entries("file_mounts")) {
      const Path path = with({"file_mounts"}, entry.key);
      const auto text = top_.word(*entry.value, path, true, "file_mounts: {~/data: ./data}");
      if (!text) continue;
      if (text->empty()) {
        source_.report.problem(path, entry.value->place, "the path here is empty");
        continue;
      }
      const auto local = reported(source_.report, path, entry.value->place,
                                  [&] { return source_.expander.path(*text); });
      if (local) {
        spec_.file_mounts.push_back({entry.key, *local, source_.report.location(entry.place)});
      }
    }
    spec_.cluster_synced_files = top_.texts("cluster_synced_files");
    spec_.file_mounts_sync_continuously = top_.boolean("file_mounts_sync_continuously");
    if (spec_.file_mounts_sync_continuously) {
      source_.report.warning({"file_mounts_sync_continuously"},
                             tree_.place({"file_mounts_sync_continuously"}),
                             "nothing is copied as it changes here; dtrain sync up does it");
    }
    spec_.rsync_exclude = top_.texts("rsync_exclude");
    spec_.rsync_filter = top_.texts("rsync_filter");
  }

  void read_commands() {
    spec_.initialization_commands = top_.texts("initialization_commands");
    spec_.setup_commands = top_.texts("setup_commands");
    const auto after_setup = [&](std::vector<std::string> commands) {
      commands.insert(commands.begin(), spec_.setup_commands.begin(), spec_.setup_commands.end());
      return commands;
    };
    spec_.head_setup_commands = after_setup(top_.texts("head_setup_commands"));
    spec_.worker_setup_commands = after_setup(top_.texts("worker_setup_commands"));
  }

  const Tree& tree_;
  Source source_;
  Mapping top_;
  ClusterSpec spec_;
  std::vector<Path> host_paths_;  // where each host stands in the file
};

}  // namespace
}  // namespace spec

Read<ClusterSpec> parse_cluster_yaml(std::string_view text, const std::string& file,
                                     const Environment& environment) {
  spec::Report report(file);
  const spec::Tree tree = spec::parse_tree(text, report);
  spec::Expander expander(environment, file);
  ClusterSpec spec = spec::ClusterReader(tree, {report, expander}).read();
  report.finish();
  return {std::move(spec), report.take_warnings()};
}

}  // namespace dtrain

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

// Ray's names of the node types that its old form is rewritten to.
constexpr const char* kLegacyHead = "ray-legacy-head-node-type";
constexpr const char* kLegacyWorker = "ray-legacy-worker-node-type";

Path with(Path path, std::string step) {
  path.push_back(std::move(step));
  return path;
}

// The keys of ProviderSpec that have a field of their own.
bool common_provider_key(std::string_view name) {
  static constexpr std::array<std::string_view, 12> kNames{"type",
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
                                                           "coordinator_address"};
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
    read_node_types();
    read_docker(top_.mapping("docker"));
    for (const char* name : {"initial_workers", "autoscaling_mode", "target_utilization_fraction",
                             "worker_default_node_type", "head_start_ray_commands",
                             "worker_start_ray_commands", "no_restart", "metadata"}) {
      top_.skip(name);
    }
    top_.finish();
    report_problems(problems_of(spec_), tree_, source_.report, moved);
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
    return "";
  }

  // Where in the file the parts of the old form stand.
  static Path moved(const Path& path) {
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
    out.head_ip = provider.text("head_ip");
    out.worker_ips = provider.texts("worker_ips");
    out.external_head_ip = provider.text("external_head_ip");
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
      } else if (!out.worker_ips.empty()) {
        provider.problem("worker_ips", "there is no head_ip", "for example: head_ip: 10.0.0.5");
      }
    } else if (!provider.has("head_ip")) {
      provider.problem("head_ip", "is missing: the host that is the head",
                       "for example: head_ip: 10.0.0.5");
    }
    limit_hosts();
  }

  // max_workers wins over the list, as in Ray; absent, it is the whole list.
  void limit_hosts() {
    ProviderSpec& out = spec_.provider;
    if (out.kind == ProviderKind::local) {
      spec_.max_workers = out.local_nodes - 1;
      return;
    }
    const int hosts = static_cast<int>(out.worker_ips.size());
    if (top_.has("max_workers") && spec_.max_workers < hosts) {
      source_.report.warning({"max_workers"}, tree_.place({"max_workers"}),
                             "is " + std::to_string(spec_.max_workers) + ": the last " +
                                 std::to_string(hosts - spec_.max_workers) +
                                 " of provider.worker_ips are left out");
      out.worker_ips.resize(static_cast<std::size_t>(spec_.max_workers));
    }
    spec_.max_workers = static_cast<int>(out.worker_ips.size());
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
    spec_.auth.ssh_private_key = auth.path_text("ssh_private_key");
    spec_.auth.ssh_public_key = auth.path_text("ssh_public_key");
    spec_.auth.ssh_proxy_command = auth.text("ssh_proxy_command");
    auth.finish();
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

  bool fixed_hosts() const {
    return spec_.provider.kind == ProviderKind::local || spec_.provider.kind == ProviderKind::ssh;
  }

  void read_node_types() {
    const std::vector<Entry> types = top_.entries("available_node_types");
    spec_.head_node_type = top_.text("head_node_type");
    const json head = top_.open("head_node");
    const json workers = top_.open("worker_nodes");
    const auto min_workers = top_.optional_whole("min_workers");
    for (const Entry& entry : types) read_node_type(entry);
    if (source_.report.knows({"provider"}) || source_.report.knows({"provider", "type"})) return;
    const bool typed = top_.has("available_node_types") || top_.has("head_node_type");
    const bool legacy = top_.has("head_node") || top_.has("worker_nodes");
    if (fixed_hosts()) {
      refuse_node_types();
      return;
    }
    if (typed) {
      for (const char* name : {"head_node", "worker_nodes", "min_workers"}) {
        if (top_.has(name)) {
          source_.report.warning({name}, tree_.place({name}),
                                 "has no effect beside available_node_types, as in Ray");
        }
      }
      if (!top_.has("head_node_type")) {
        top_.problem("head_node_type", "is missing: which of available_node_types the head is",
                     types.empty() ? "" : "for example: head_node_type: " + types.front().key);
      }
      return;
    }
    if (legacy) {
      add_legacy(head, workers, static_cast<int>(min_workers.value_or(0)));
    } else {
      add_default_types(static_cast<int>(min_workers.value_or(0)));
    }
  }

  // Ray too: machines that exist have no types.
  void refuse_node_types() {
    for (const char* name :
         {"available_node_types", "head_node_type", "head_node", "worker_nodes"}) {
      const bool blank = top_.has(name) && tree_.root().find(name)->entries.empty() &&
                         tree_.root().find(name)->kind == Node::Kind::mapping;
      if (!top_.has(name) || blank) continue;
      top_.problem(name, std::string("is not for provider ") + to_string(spec_.provider.kind) +
                             ": its nodes are given by " +
                             (spec_.provider.kind == ProviderKind::ssh ? "head_ip and worker_ips"
                                                                       : "nodes"));
    }
  }

  void read_node_type(const Entry& entry) {
    Mapping mapping(entry.value, node_type_table(), {"available_node_types", entry.key}, source_);
    NodeType type;
    type.name = entry.key;
    type.node_config = mapping.open("node_config");
    if (const Node* resources = mapping.special("resources")) {
      type.resources = read_resources(mapping, *resources, mapping.path_of("resources"));
    }
    for (const Entry& label : mapping.entries("labels")) {
      const Path path = with(mapping.path_of("labels"), label.key);
      if (auto text = mapping.word(*label.value, path, false)) type.labels[label.key] = *text;
    }
    type.min_workers = static_cast<int>(mapping.whole("min_workers"));
    if (const auto most = mapping.optional_whole("max_workers")) {
      type.max_workers = static_cast<int>(*most);
    }
    type.initialization_commands =
        mapping.optional_texts("initialization_commands").value_or(spec_.initialization_commands);
    type.worker_setup_commands = mapping.optional_texts("worker_setup_commands");
    read_docker(mapping.mapping("docker"));
    mapping.finish();
    spec_.node_types.push_back(std::move(type));
  }

  std::map<std::string, double> read_resources(Mapping& mapping, const Node& node,
                                               const Path& path) {
    std::map<std::string, double> resources;
    if (node.kind != Node::Kind::mapping) {
      source_.report.problem(path, node.place, "must be a mapping, not " + node.kind_name(),
                             "for example: resources: {CPU: 8, GPU: 1}");
      return resources;
    }
    for (const Entry& entry : node.entries) {
      const Path at = with(path, entry.key);
      const auto text = mapping.word(*entry.value, at, false);
      if (!text) continue;
      const ScalarType type = entry.value->type();
      const bool memory = entry.key == "memory" || entry.key == "object_store_memory";
      if (memory) {
        const auto bytes =
            reported(source_.report, at, entry.value->place, [&] { return parse_bytes(*text); });
        if (bytes) resources[entry.key] = static_cast<double>(*bytes);
      } else if (type == ScalarType::whole || type == ScalarType::number) {
        resources[entry.key] = mapping.json(*entry.value, at, false).get<double>();
      } else {
        source_.report.problem(at, entry.value->place,
                               "must be a number, not " + entry.value->kind_name(),
                               "for example: " + printable(entry.key, false) + ": 1");
      }
    }
    if (resources.erase("object_store_memory") > 0) {
      warn_ray_only(*node.find("object_store_memory"),
                    tree_.place(with(path, "object_store_memory")),
                    with(path, "object_store_memory"), source_.report);
    }
    return resources;
  }

  // The old form, as Ray rewrites it.
  void add_legacy(const json& head, const json& workers, int min_workers) {
    NodeType one;
    one.name = kLegacyHead;
    one.max_workers = 0;
    NodeType others;
    others.name = kLegacyWorker;
    others.min_workers = std::min(min_workers, spec_.max_workers);
    others.max_workers = spec_.max_workers;
    fill_legacy(one, head, "head_node");
    fill_legacy(others, workers, "worker_nodes");
    spec_.head_node_type = kLegacyHead;
    spec_.node_types = {std::move(one), std::move(others)};
  }

  void fill_legacy(NodeType& type, const json& config, const char* key) {
    type.node_config = config;
    type.initialization_commands = spec_.initialization_commands;
    const Node* node = tree_.root().find(key);
    const Node* resources = node == nullptr ? nullptr : node->find("resources");
    if (resources == nullptr || resources->kind == Node::Kind::null) return;
    Mapping probe(nullptr, node_type_table(), {key}, source_);
    type.resources = read_resources(probe, *resources, {key, "resources"});
    type.node_config.erase("resources");
  }

  // What Ray's defaults.yaml of these clouds has; kubernetes and slurm have no such default.
  void add_default_types(int min_workers) {
    json config;
    if (spec_.provider.kind == ProviderKind::aws) config = {{"InstanceType", "m5.large"}};
    if (spec_.provider.kind == ProviderKind::gcp) config = {{"machineType", "n1-standard-2"}};
    if (spec_.provider.kind == ProviderKind::azure) {
      config = {{"azure_arm_parameters", {{"vmSize", "Standard_D2s_v3"}}}};
    }
    if (config.is_null()) {
      top_.problem("available_node_types", "is missing: the kinds of nodes there may be",
                   "for example: available_node_types: {head: {node_config: {}}}");
      return;
    }
    NodeType head;
    head.name = "ray.head.default";
    head.node_config = config;
    head.max_workers = 0;
    head.initialization_commands = spec_.initialization_commands;
    NodeType worker = head;
    worker.name = "ray.worker.default";
    worker.min_workers = std::min(min_workers, spec_.max_workers);
    worker.max_workers = std::nullopt;
    spec_.head_node_type = head.name;
    spec_.node_types = {std::move(head), std::move(worker)};
  }

  void read_docker(Mapping docker) {
    for (const char* name : {"image", "head_image", "worker_image"}) {
      if (docker.table().find(name) == nullptr || !docker.has(name)) continue;
      if (!docker.text(name).empty()) {
        source_.report.warning(docker.path_of(name), tree_.place(docker.path_of(name)),
                               "containers are not built yet: commands and ranks run on the node "
                               "itself");
      }
    }
    docker.skip_all();
  }

  const Tree& tree_;
  Source source_;
  Mapping top_;
  ClusterSpec spec_;
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

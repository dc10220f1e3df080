#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/text.hpp"
#include "launcher/spec/ec2_model.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/spec/readers.hpp"
#include "launcher/spec/values.hpp"

// The node types of a cluster YAML, in Ray's new form and in its old one.
namespace dtrain::spec {

using nlohmann::json;

namespace {

// Ray's name of the one type of machines that exist.
constexpr const char* kRayLocalType = "local.cluster.node";

// What Ray's defaults.yaml of a provider says of node types.
struct RayDefaults {
  ProviderKind kind;
  const char* head;
  const char* worker;
  json node_config;
};

// Null for a provider that Ray does not have, or that has no types.
const RayDefaults* ray_defaults(ProviderKind kind) {
  static const std::array<RayDefaults, 4> defaults{{
      {ProviderKind::aws, "ray.head.default", "ray.worker.default", {{"InstanceType", "m5.large"}}},
      {ProviderKind::gcp,
       "ray_head_default",
       "ray_worker_small",
       {{"machineType", "n1-standard-2"}}},
      {ProviderKind::azure,
       "ray.head.default",
       "ray.worker.default",
       {{"azure_arm_parameters", {{"vmSize", "Standard_D2s_v3"}}}}},
      {ProviderKind::kubernetes, "head_node", "worker_node", json::object()},
  }};
  for (const RayDefaults& each : defaults) {
    if (each.kind == kind) return &each;
  }
  return nullptr;
}

class NodeTypesReader {
 public:
  NodeTypesReader(Mapping& top, const Document& document, Source source, ClusterSpec& spec)
      : top_(top), document_(document), source_(source), spec_(spec) {}

  void read() {
    const std::vector<Entry> types = top_.entries("available_node_types");
    spec_.head_node_type = top_.text("head_node_type");
    const json head = top_.open("head_node");
    const json workers = top_.open("worker_nodes");
    const auto min_workers = top_.optional_whole("min_workers");
    if (!affordable(types)) return;
    for (const Entry& entry : types) read_node_type(entry);
    if (source_.report.knows({"provider"}) || source_.report.knows({"provider", "type"})) return;
    const bool typed = top_.has("available_node_types") || top_.has("head_node_type");
    const bool legacy = top_.has("head_node") || top_.has("worker_nodes");
    if (fixed_hosts()) {
      if (!take_local_type()) refuse_node_types();
      if (min_workers) check_few_hosts("min_workers", static_cast<int>(*min_workers));
      return;
    }
    if (typed) {
      for (const char* name : {"head_node", "worker_nodes", "min_workers"}) {
        if (top_.has(name)) {
          source_.report.warning({name}, document_.place({name}),
                                 "has no effect beside available_node_types, as in Ray");
        }
      }
      if (spec_.provider.kind == ProviderKind::slurm) {
        if (!top_.has("max_workers")) allow_all();
      } else if (!top_.has("head_node_type")) {
        find_head_type(types);
      }
      return;
    }
    if (legacy) {
      add_legacy(head, workers, static_cast<int>(min_workers.value_or(0)));
      // Its head is on the login node.
      if (spec_.provider.kind == ProviderKind::slurm) spec_.head_node_type.clear();
    } else {
      add_default_types(static_cast<int>(min_workers.value_or(0)));
    }
  }

 private:
  bool fixed_hosts() const {
    return spec_.provider.kind == ProviderKind::local || spec_.provider.kind == ProviderKind::ssh;
  }

  // Each type takes a copy of the cluster's commands: few enough, and short enough in all.
  bool affordable(const std::vector<Entry>& types) {
    std::size_t bytes = 0;
    for (const std::string& command : spec_.initialization_commands) bytes += command.size() + 64;
    if (types.size() <= limits::kNodeTypes && bytes * types.size() <= kMaxBytes) return true;
    top_.problem("available_node_types",
                 types.size() > limits::kNodeTypes
                     ? "has more than " + std::to_string(limits::kNodeTypes) + " types"
                     : "is too large together with initialization_commands");
    return false;
  }

  // Ray fills in its default; else it is for the user to say.
  void find_head_type(const std::vector<Entry>& types) {
    if (types.empty()) return;  // said elsewhere: there are none
    const RayDefaults* defaults = ray_defaults(spec_.provider.kind);
    std::vector<std::string> possible;
    for (const NodeType& type : spec_.node_types) {
      if (defaults != nullptr && type.name == defaults->head) {
        spec_.head_node_type = type.name;
        return;
      }
      if (type.max_workers == 0 || types.size() == 1) possible.push_back(type.name);
    }
    std::vector<std::string> names;
    for (const Entry& entry : types) names.push_back(printable(entry.key, false));
    const std::string hint = possible.size() == 1
                                 ? "write head_node_type: " + printable(possible.front(), false)
                                 : "head_node_type is one of: " + join(names, ", ");
    top_.problem("head_node_type", "is missing: which of available_node_types the head is",
                 names.size() > 20 ? "" : hint);
  }

  // Slurm has its own bounds. Where some are to stand ready those are meant, unless more are named.
  void allow_all() {
    std::int64_t all = 0;
    for (NodeType& type : spec_.node_types) {
      const bool is_head = type.name == spec_.head_node_type;  // workers only if it says so
      if (is_head && !type.max_workers) continue;
      if (type.min_workers > 0 && !type.max_workers) type.max_workers = type.min_workers;
      all += type.max_workers.value_or(limits::kNodes);
    }
    spec_.max_workers = static_cast<int>(std::min<std::int64_t>(all, limits::kNodes));
  }

  void check_few_hosts(const char* name, int wanted) {
    const int there = spec_.max_workers;
    if (wanted > there) warn_of_few_hosts(name, wanted, there, document_, source_.report);
  }

  // What Ray itself writes for machines that exist, in the file that it puts on the head: one type
  // of a name that is its own.
  bool take_local_type() {
    if (spec_.node_types.size() != 1 || spec_.node_types.front().name != kRayLocalType)
      return false;
    if (spec_.head_node_type != kRayLocalType && !spec_.head_node_type.empty()) return false;
    if (!spec_.node_types.front().resources.empty()) {
      const Path path{"available_node_types", kRayLocalType, "resources"};
      source_.report.warning(path, document_.place(path),
                             "has no effect: what a host has is asked of the host");
    }
    spec_.node_types.clear();
    spec_.head_node_type.clear();
    return true;
  }

  // Ray too: machines that exist have no types.
  void refuse_node_types() {
    for (const char* name :
         {"available_node_types", "head_node_type", "head_node", "worker_nodes"}) {
      const bool blank = top_.has(name) && document_.root().find(name)->entries.empty() &&
                         document_.root().find(name)->kind == Node::Kind::mapping;
      if (!top_.has(name) || blank) continue;
      top_.problem(
          name, std::string("is not for provider ") + to_string(spec_.provider.kind) +
                    ": its nodes are given by " +
                    (spec_.provider.kind == ProviderKind::ssh ? "hosts, or head_ip and worker_ips"
                                                              : "nodes"));
    }
  }

  void read_node_type(const Entry& entry) {
    Mapping mapping(entry.value, node_type_table(), {"available_node_types", entry.key}, source_);
    NodeType type;
    type.name = entry.key;
    type.location = source_.report.location(document_.place({"available_node_types", entry.key}));
    type.node_config = mapping.open("node_config");
    check_node_config(type.node_config, mapping.path_of("node_config"));
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
    type.idle_timeout_s = mapping.optional_number("idle_timeout_s");
    type.priority = static_cast<int>(mapping.whole("priority"));
    type.fallback_instance_types = mapping.texts("fallback_instance_types");
    type.on_demand_fallback = mapping.boolean("on_demand_fallback");
    type.placement_group = mapping.choice("placement_group");
    type.efa = mapping.boolean("efa");
    if (spec_.provider.kind != ProviderKind::aws) {
      for (const char* name :
           {"fallback_instance_types", "on_demand_fallback", "placement_group", "efa"}) {
        if (!mapping.has(name)) continue;
        source_.report.warning(
            mapping.path_of(name), document_.place(mapping.path_of(name)),
            std::string("has no effect with provider ") + to_string(spec_.provider.kind));
      }
    } else if (type.efa && type.node_config.contains("NetworkInterfaces")) {
      mapping.problem("efa", "node_config has NetworkInterfaces: they say all of this");
    }
    type.initialization_commands =
        mapping.optional_texts("initialization_commands").value_or(spec_.initialization_commands);
    type.worker_setup_commands = mapping.optional_texts("worker_setup_commands");
    read_docker(mapping.mapping("docker"), document_, source_.report);
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
      const bool memory = entry.key == "memory" || entry.key == "object_store_memory";
      if (memory) {
        const auto text = mapping.word(*entry.value, at, false);
        if (!text) continue;
        const auto bytes =
            reported(source_.report, at, entry.value->place, [&] { return parse_bytes(*text); });
        if (bytes) resources[entry.key] = static_cast<double>(*bytes);
      } else if (const auto amount = mapping.amount(*entry.value, at)) {
        resources[entry.key] = *amount;
      }
    }
    if (resources.erase("object_store_memory") > 0) {
      warn_ray_only(*node.find("object_store_memory"),
                    document_.place(with(path, "object_store_memory")),
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
    others.min_workers = min_workers;
    // What no machine could be made of is none that jobs may ask for.
    const bool says_none = spec_.provider.kind == ProviderKind::aws && !top_.has("worker_nodes");
    others.max_workers = says_none ? others.min_workers : spec_.max_workers;
    fill_legacy(one, head, "head_node");
    fill_legacy(others, workers, "worker_nodes");
    spec_.head_node_type = kLegacyHead;
    spec_.node_types = {std::move(one), std::move(others)};
  }

  void fill_legacy(NodeType& type, const json& config, const char* key) {
    type.node_config = config;
    type.location = source_.report.location(document_.place({key}));
    type.initialization_commands = spec_.initialization_commands;
    json others = config;
    if (others.is_object()) others.erase("resources");
    const bool is_none = type.name == kLegacyWorker && type.max_workers == 0;
    if (top_.has(key) || !is_none) check_node_config(others, {key});
    const Node* node = document_.root().find(key);
    const Node* resources = node == nullptr ? nullptr : node->find("resources");
    if (resources == nullptr || resources->kind == Node::Kind::null) return;
    Mapping probe(nullptr, node_type_table(), {key}, source_);
    type.resources = read_resources(probe, *resources, {key, "resources"});
    type.node_config.erase("resources");
  }

  // Of aws it is what RunInstances takes; `SubnetIds` is Ray's, any of which will do.
  void check_node_config(json config, const Path& path) {
    if (spec_.provider.kind != ProviderKind::aws || !config.is_object()) return;
    for (const char* name : {"MinCount", "MaxCount"}) {
      if (config.erase(name) == 0) continue;
      source_.report.warning(with(path, name), document_.place(with(path, name)),
                             "has no effect: min_workers and max_workers say how many there are");
    }
    for (const char* name : {"ClientToken", "DryRun"}) {
      if (config.erase(name) == 0) continue;
      const Path at = with(path, name);
      source_.report.problem(at, document_.place(at), "is for dtrain to say");
    }
    const json market = config.value("InstanceMarketOptions", json::object());
    const json spot = market.is_object() ? market.value("SpotOptions", json::object()) : json();
    if (spot.is_object() && spot.value("SpotInstanceType", json()) == "persistent") {
      const Path at =
          with(with(with(path, "InstanceMarketOptions"), "SpotOptions"), "SpotInstanceType");
      source_.report.problem(at, document_.place(at),
                             "must be one-time: a persistent request makes a machine anew for each "
                             "that is given back");
    }
    if (config.contains("SecurityGroups")) {
      const Path at = with(path, "SecurityGroups");
      source_.report.problem(at, document_.place(at),
                             "EC2 takes no names of groups in a VPC; SecurityGroupIds says them");
    }
    check_image(config, path);
    const json metadata = config.value("MetadataOptions", json::object());
    if (metadata.is_object() && metadata.value("HttpEndpoint", json()) == "disabled") {
      const Path at = with(with(path, "MetadataOptions"), "HttpEndpoint");
      source_.report.problem(at, document_.place(at),
                             "must be enabled: the machine learns by it whom to let in, and what "
                             "it starts with");
    }
    // cloud-init sees by its first line what it is.
    if (const json data = config.value("UserData", json()); data.is_string()) {
      const Path at = with(path, "UserData");
      const std::string& text = data.get_ref<const std::string&>();
      if (!text.starts_with('#')) {
        source_.report.problem(at, document_.place(at),
                               "must begin with #!, #cloud-config or the like: it is one part of "
                               "what the machine starts with");
      } else if (text.starts_with("#cloud-config") && text.find("\nssh_keys:") != text.npos) {
        source_.report.problem(at, document_.place(at),
                               "ssh_keys is for dtrain to say: by them it knows the machine");
      }
    }
    if (config.contains("SubnetIds")) {
      json subnets = {{"SecurityGroupIds", config["SubnetIds"]}};  // as that, a list of texts
      config.erase("SubnetIds");
      auto problems = ec2_problems(subnets, kRunInstances, path);
      for (Problem& problem : problems) problem.path[path.size()] = "SubnetIds";
      report_problems(problems, document_, source_.report);
    }
    report_problems(ec2_problems(config, kRunInstances, path), document_, source_.report);
  }

  // Without either EC2 makes some machine of its own choice; a template says it too.
  void check_image(const json& config, const Path& path) {
    const auto problem = [&](const char* name, const std::string& what, const std::string& hint) {
      const Path at = with(path, name);
      source_.report.problem(at, document_.place(at), what, hint);
    };
    const json image = config.value("ImageId", json());
    const std::string named = image.is_string() ? image.get<std::string>() : "";
    if (!named.empty() && !is_image(named)) {
      problem("ImageId", shown(named) + " is no image", image_hint());
    }
    const json kind = config.value("InstanceType", json());
    const json launch_template = config.value("LaunchTemplate", json());
    const bool is_said = !kind.is_null() && kind != json("");
    if (!is_said && launch_template.is_null()) {
      problem("InstanceType", "is missing: what kind of machine it is", "for example: m5.large");
    }
  }

  void add_default_types(int min_workers) {
    const RayDefaults* defaults = ray_defaults(spec_.provider.kind);
    if (defaults == nullptr) {
      top_.problem("available_node_types", "is missing: the kinds of nodes there may be",
                   "for example: available_node_types: {head: {node_config: {}}}");
      return;
    }
    NodeType head;
    head.name = defaults->head;
    head.node_config = defaults->node_config;
    head.max_workers = 0;
    head.initialization_commands = spec_.initialization_commands;
    NodeType worker = head;
    worker.name = defaults->worker;
    worker.min_workers = min_workers;
    worker.max_workers = std::nullopt;
    spec_.head_node_type = head.name;
    spec_.node_types = {std::move(head), std::move(worker)};
  }

  Mapping& top_;
  const Document& document_;
  Source source_;
  ClusterSpec& spec_;
};

}  // namespace

void read_docker(Mapping docker, const Document& document, Report& report) {
  for (const char* name : {"image", "head_image", "worker_image"}) {
    if (docker.table().find(name) == nullptr || !docker.has(name)) continue;
    if (!docker.text(name).empty()) {
      report.warning(docker.path_of(name), document.place(docker.path_of(name)),
                     "containers are not built yet: commands and ranks run on the node "
                     "itself");
    }
  }
  docker.skip_all();
}

void warn_of_few_hosts(const char* name, int wanted, int there, const Document& document,
                       Report& report) {
  report.warning({name}, document.place({name}),
                 "is " + std::to_string(wanted) + ", and there " +
                     (there == 1 ? "is 1 worker" : "are " + std::to_string(there) + " workers") +
                     ": no more can be");
}

void read_node_types(Mapping& top, const Document& document, Source source, ClusterSpec& spec) {
  NodeTypesReader(top, document, source, spec).read();
}

}  // namespace dtrain::spec

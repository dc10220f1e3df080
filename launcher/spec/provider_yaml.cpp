#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/text.hpp"
#include "launcher/spec/ec2_model.hpp"
#include "launcher/spec/limits.hpp"
#include "launcher/spec/readers.hpp"
#include "launcher/spec/yaml.hpp"

// `provider` of a cluster YAML: its type, its keys, and the hosts that it lists.
namespace dtrain::spec {

using nlohmann::json;

namespace {

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
class ProviderReader {
 public:
  ProviderReader(Mapping& top, const Document& document, Source source, ClusterSpec& spec,
                 std::vector<Path>& host_paths)
      : top_(top), document_(document), source_(source), spec_(spec), host_paths_(host_paths) {}

  void read() {
    const Node* node = top_.special("provider");
    if (node == nullptr) return;
    const Path path{"provider"};
    if (node->kind != Node::Kind::mapping) {
      source_.report.problem(path, node->place, "must be a mapping, not " + node->kind_name(),
                             colon_hint(*node, "for example: provider: {type: local}"));
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

 private:
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
    spec_.provider.location = source_.report.location(type->place);
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
        note_local_path(mapping, "ssh_private_key", host.ssh_private_key, document_, source_,
                        spec_);
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

  // max_workers wins over the list, and more than the list is a warning, as in Ray; absent, it is
  // the whole list.
  void limit_hosts() {
    ProviderSpec& out = spec_.provider;
    if (out.kind == ProviderKind::local) {
      spec_.max_workers = out.local_nodes - 1;
      return;
    }
    const int workers = std::max(static_cast<int>(out.hosts.size()) - 1, 0);
    if (top_.has("max_workers") && spec_.max_workers < workers) {
      source_.report.warning({"max_workers"}, document_.place({"max_workers"}),
                             "is " + std::to_string(spec_.max_workers) + ": the last " +
                                 std::to_string(workers - spec_.max_workers) +
                                 " of the workers are left out");
      out.hosts.resize(static_cast<std::size_t>(spec_.max_workers) + 1);
    } else if (top_.has("max_workers") && spec_.max_workers > workers) {
      warn_of_few_hosts("max_workers", spec_.max_workers, workers, document_, source_.report);
    }
    spec_.max_workers =
        std::min(std::max(static_cast<int>(out.hosts.size()) - 1, 0), limits::kNodes);
  }

  // By its name EC2 takes one too, but lists it by its id: it would be another rule each time.
  void check_groups(const json& rule, const Path& at) {
    const json pairs = rule.is_object() ? rule.value("UserIdGroupPairs", json()) : json();
    for (std::size_t i = 0; pairs.is_array() && i < pairs.size(); ++i) {
      if (!pairs[i].is_object() || pairs[i].contains("GroupId")) continue;
      const Path each = with(at, "[" + std::to_string(i) + "]");
      source_.report.problem(each, document_.place(each), "must say its GroupId",
                             "aws ec2 describe-security-groups lists them");
    }
  }

  // What goes to EC2 has EC2's keys.
  void check_ec2(const json& value, const Path& path) {
    const bool group = path.back() == "security_group";
    const std::vector<std::string> known =
        group ? std::vector<std::string>{"GroupName", "IpPermissions"}
              : std::vector<std::string>{"key_name"};
    for (const auto& [name, inner] : value.items()) {
      const Path at = with(path, name);
      const auto problem = [&](const std::string& what, const std::string& hint = {}) {
        source_.report.problem(at, document_.place(at), what, hint);
      };
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        problem("is no key here", "there are: " + join(known, ", "));
      } else if (name != "IpPermissions") {
        if (!inner.is_string()) problem("must be a text");
      } else if (!inner.is_array()) {
        problem("must be a list, each a mapping");
      } else {
        spec_.provider.rules_location = source_.report.location(document_.place(at));
        for (std::size_t i = 0; i < inner.size(); ++i) {
          const Path each = with(at, "[" + std::to_string(i) + "]");
          if (!inner[i].is_object()) {
            source_.report.problem(each, document_.place(each), "must be a mapping");
          }
          report_problems(ec2_problems(inner[i], kIpPermission, each), document_, source_.report);
          check_groups(inner[i], with(each, "UserIdGroupPairs"));
        }
      }
    }
  }

  void read_others(Mapping& provider, ProviderKind kind) {
    json& other = spec_.provider.other;
    for (const Key& key : provider_table(kind).keys) {
      if (common_provider_key(key.name) || key.name == "disable_node_updaters") continue;
      const char* name = key.name.c_str();
      // NOLINTNEXTLINE(bugprone-branch-clone): the questions have this order
      if (key.use != Use::honoured) {
        provider.skip(name);
      } else if (key.shape.kind == Shape::Kind::open) {
        json value = provider.open(name);
        if (kind == ProviderKind::aws) check_ec2(value, provider.path_of(name));
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

  Mapping& top_;
  const Document& document_;
  Source source_;
  ClusterSpec& spec_;
  std::vector<Path>& host_paths_;
};

}  // namespace

void note_local_path(const Mapping& mapping, const char* name, const std::string& path,
                     const Document& document, Source source, ClusterSpec& spec,
                     LocalPath::What what) {
  if (path.empty()) return;
  const Path key = mapping.path_of(name);
  spec.local_paths.push_back(
      {what, to_string(key), path, source.report.location(document.place(key))});
}

void read_provider(Mapping& top, const Document& document, Source source, ClusterSpec& spec,
                   std::vector<Path>& host_paths) {
  ProviderReader(top, document, source, spec, host_paths).read();
}

}  // namespace dtrain::spec

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

// A file in Ray's form: it says something that only Ray has a use for.
bool of_ray(const Node& root) {
  return std::any_of(root.entries.begin(), root.entries.end(), [](const Entry& entry) {
    const Key* key = cluster_table().find(entry.key);
    return entry.key == "head_node" || entry.key == "worker_nodes" ||
           (key != nullptr && (key->use == Use::ray_only || key->use == Use::obsolete));
  });
}

class ClusterReader {
 public:
  ClusterReader(const Document& document, Source source)
      : document_(document),
        source_(source),
        top_(&document.root(), cluster_table(), {}, source, explain) {}

  ClusterSpec read() {
    spec_.source = source_.expander.file();
    spec_.cluster_name = top_.text("cluster_name");
    spec_.max_workers = static_cast<int>(top_.whole("max_workers"));
    spec_.upscaling_speed = top_.number("upscaling_speed");
    spec_.idle_timeout_minutes = top_.number("idle_timeout_minutes");
    read_provider(top_, document_, source_, spec_, host_paths_);
    read_max_cost();
    read_auth();
    read_files();
    read_commands();
    read_ready();
    read_down_when_idle();
    read_storage();
    read_node_types(top_, document_, source_, spec_);
    warn_of_unused_rules();
    // Where it goes on when the head moves.
    if (spec_.head_moves() && spec_.provider.root.empty()) {
      spec_.provider.root = spec_.provider.other.value("shared_folder", "~/.dtrain");
    }
    read_docker(top_.mapping("docker"), document_, source_.report);
    for (const char* name :
         {"initial_workers", "autoscaling_mode", "target_utilization_fraction",
          "worker_default_node_type", "terminate_failed_nodes", "head_start_ray_commands",
          "worker_start_ray_commands", "no_restart", "metadata"}) {
      top_.skip(name);
    }
    top_.finish();
    report_problems(problems_of(spec_), document_, source_.report,
                    [this](const Path& path) { return moved(path); });
    return std::move(spec_);
  }

 private:
  // The group that they are for is nobody's.
  void warn_of_unused_rules() {
    if (spec_.provider.rules_location.line == 0) return;
    const bool is_used = std::any_of(
        spec_.node_types.begin(), spec_.node_types.end(),
        [](const NodeType& type) { return !type.node_config.contains("SecurityGroupIds"); });
    const Path rules{"provider", "security_group", "IpPermissions"};
    if (!is_used) {
      source_.report.warning(rules, document_.place(rules),
                             "has no effect: each node type has SecurityGroupIds of its own");
    }
  }

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
    const bool is_default = !top_.has("available_node_types");
    if (path[1] != kLegacyHead && path[1] != kLegacyWorker && !is_default) return path;
    const bool top = path.size() == 3 && path[2].ends_with("_workers");
    if (!top && !top_.has("head_node") && !top_.has("worker_nodes")) return path;
    Path there(path.begin() + 2, path.end());
    if (!top) there.insert(there.begin(), path[1] == kLegacyHead ? "head_node" : "worker_nodes");
    return there;
  }

  void read_max_cost() {
    const Path path{"max_cost_per_hour"};
    spec_.max_cost_per_hour = top_.optional_number("max_cost_per_hour");
    if (!spec_.max_cost_per_hour) return;
    spec_.max_cost_location = source_.report.location(document_.place(path));
    switch (spec_.provider.kind) {
      case ProviderKind::aws:
      case ProviderKind::gcp:
      case ProviderKind::azure:
        return;
      case ProviderKind::local:
      case ProviderKind::ssh:
      case ProviderKind::kubernetes:
      case ProviderKind::slurm:
        break;
    }
    if (source_.report.knows({"provider"}) || source_.report.knows({"provider", "type"})) return;
    source_.report.warning(path, document_.place(path),
                           std::string("has no effect with provider ") +
                               to_string(spec_.provider.kind) + ": no prices are known of it");
  }

  void read_auth() {
    Mapping auth = top_.mapping("auth");
    spec_.auth.ssh_user = auth.text("ssh_user");
    const bool hosts =
        spec_.provider.kind == ProviderKind::ssh || spec_.provider.kind == ProviderKind::slurm;
    if (hosts && !auth.has("ssh_user")) spec_.auth.ssh_user.clear();
    if (const auto port = auth.optional_whole("ssh_port")) {
      spec_.auth.ssh_port = static_cast<int>(*port);
    }
    spec_.auth.ssh_private_key = auth.path_text("ssh_private_key");
    note_local_path(auth, "ssh_private_key", spec_.auth.ssh_private_key, document_, source_, spec_);
    spec_.auth.ssh_public_key = auth.path_text("ssh_public_key");
    if (spec_.provider.kind == ProviderKind::aws) {
      note_local_path(auth, "ssh_public_key", spec_.auth.ssh_public_key, document_, source_, spec_,
                      LocalPath::What::public_key);
    }
    spec_.auth.ssh_proxy_command = auth.text("ssh_proxy_command");
    spec_.auth.ssh_proxy_jump = auth.texts("ssh_proxy_jump");
    auth.skip("ssh_proxy_use_node_id");
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

  void read_down_when_idle() {
    Mapping down = top_.mapping("down_when_idle");
    const double minutes = down.number("minutes");
    const bool terminate = down.choice("head") == "terminate";
    down.finish();
    if (top_.has("down_when_idle")) spec_.down_when_idle = DownWhenIdle{minutes, terminate};
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
        spec_.file_mounts.push_back({entry.key, *local});
        spec_.local_paths.push_back({LocalPath::What::mount, to_string(path), *local,
                                     source_.report.location(entry.value->place)});
      }
    }
    spec_.cluster_synced_files = top_.texts("cluster_synced_files");
    spec_.file_mounts_sync_continuously = top_.boolean("file_mounts_sync_continuously");
    if (spec_.file_mounts_sync_continuously) {
      source_.report.warning({"file_mounts_sync_continuously"},
                             document_.place({"file_mounts_sync_continuously"}),
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

  const Document& document_;
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
  const spec::Document document = spec::parse_document(text, report);
  spec::report_repeated(document, report, spec::of_ray(document.root()));
  spec::Expander expander(environment, file);
  ClusterSpec spec = spec::ClusterReader(document, {report, expander}).read();
  report.finish();
  return {std::move(spec), report.take_warnings()};
}

}  // namespace dtrain

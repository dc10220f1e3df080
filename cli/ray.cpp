#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bring_up.hpp"
#include "cli/context.hpp"
#include "cli/numbers.hpp"
#include "cli/ray.hpp"
#include "cli/remote_command.hpp"
#include "cli/sync.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"

// Verbs as Ray's cluster launcher spells them, each a few words of another verb of ours.
namespace dtrain::cli {
namespace {

struct RayFlags {
  std::string file;
  std::string from;
  std::string to;
  std::vector<std::string> nodes;
  bool all = false;
  int lines = 100;
};

std::shared_ptr<RayFlags> with_file(CLI::App& app) {
  auto options = std::make_shared<RayFlags>();
  app.add_option("file", options->file, "The cluster YAML, in place of -c")
      ->type_name("CLUSTER.yaml");
  add_ray_flags(app);
  return options;
}

// A word that is no cluster YAML is the first of those behind it.
void choose(Context& context, RayFlags& options) {
  if (options.file.empty()) return;
  if (names_cluster_yaml(options.file)) {
    choose_by_yaml(context, options.file);
    return;
  }
  if (!options.to.empty()) {
    throw Error(ErrorCode::usage, options.file + " is no cluster YAML");
  }
  options.to = options.from;
  options.from = options.file;
}

// Addresses as this machine knows the nodes.
int print_addresses(Context& context, RayFlags& options, bool head) {
  choose(context, options);
  const std::string name = context.cluster();
  const auto state = load_cluster(name);
  if (!state || state->nodes.empty()) {
    throw Error(ErrorCode::unreachable, "cluster " + name + " is not up")
        .with_hint("dtrain up CLUSTER.yaml");
  }
  nlohmann::json addresses = nlohmann::json::array();
  for (std::size_t i = head ? 0 : 1; i < (head ? 1 : state->nodes.size()); ++i) {
    addresses.push_back(state->nodes[i].address);
  }
  if (context.globals.json) {
    context.print_json(addresses);
    return 0;
  }
  for (const nlohmann::json& address : addresses) {
    context.print(address.get<std::string>() + "\n");
  }
  return 0;
}

}  // namespace

void add_ray_flags(CLI::App& app) {
  static bool nothing;
  static std::string no_words;
  // What Ray caches is its own matter; commands run on the host, which has no container of ours.
  app.add_flag("--no-config-cache", nothing)->group("");
  app.add_flag("--use-normal-shells", nothing)->group("");
  app.add_flag("--disable-usage-stats", nothing)->group("");
  app.add_flag("--redirect-command-output", nothing)->group("");
  for (const char* name : {"--run-env", "--log-style", "--log-color"}) {
    app.add_option(name, no_words)->group("");
  }
}

Verb add_rsync_up(CLI::App& root) {
  CLI::App* app = add_verb(root, "rsync-up", "Ray's spelling of sync up, to the head's node",
                           "  dtrain rsync-up cluster.yaml ./code '~/code'\n"
                           "  dtrain rsync-up cluster.yaml        its file_mounts, to all nodes\n");
  auto options = with_file(*app);
  app->add_option("local", options->from, "A folder or file here")->type_name("LOCAL");
  app->add_option("remote", options->to, "Where it goes")->type_name("REMOTE");
  app->add_flag("-A,--all-nodes", options->all, "To all nodes");
  return {app,
          [options](Context& context) {
            choose(context, *options);
            SyncRequest request;
            request.from = options->from;
            request.to = options->to;
            request.head_only = !options->all && !options->from.empty();
            request.yaml_rules = true;
            return sync_up(context, request);
          },
          std::nullopt};
}

Verb add_rsync_down(CLI::App& root) {
  CLI::App* app = add_verb(root, "rsync-down", "Ray's spelling of sync down, from the head's node",
                           "  dtrain rsync-down cluster.yaml '~/results' ./results\n");
  auto options = with_file(*app);
  app->add_option("remote", options->from, "A folder or file there")->type_name("REMOTE");
  app->add_option("local", options->to, "Where it goes here")->type_name("LOCAL");
  return {app,
          [options](Context& context) {
            choose(context, *options);
            if (options->to.empty()) {
              throw Error(ErrorCode::usage, "from where, and where to?")
                  .with_hint("dtrain rsync-down CLUSTER.yaml REMOTE LOCAL");
            }
            SyncRequest request;
            request.from = options->from;
            request.to = options->to;
            return sync_down(context, request);
          },
          std::nullopt};
}

Verb add_get_head_ip(CLI::App& root) {
  CLI::App* app = add_verb(root, "get-head-ip", "The address of the head's node",
                           "  dtrain get-head-ip cluster.yaml\n");
  auto options = with_file(*app);
  return {app, [options](Context& context) { return print_addresses(context, *options, true); },
          std::nullopt};
}

Verb add_get_worker_ips(CLI::App& root) {
  CLI::App* app = add_verb(root, "get-worker-ips", "The addresses of the other nodes, one a line",
                           "  dtrain get-worker-ips cluster.yaml\n");
  auto options = with_file(*app);
  return {app, [options](Context& context) { return print_addresses(context, *options, false); },
          std::nullopt};
}

Verb add_monitor(CLI::App& root) {
  CLI::App* app = add_verb(root, "monitor", "Follow the head's own log",
                           "  dtrain monitor cluster.yaml\n"
                           "  dtrain monitor --lines 20\n");
  auto options = with_file(*app);
  app->add_option("--lines", options->lines, "Begin with the last N lines (default: 100)")
      ->type_name("N")
      ->check(at_least(0));
  return {app,
          [options](Context& context) {
            choose(context, *options);
            const auto state = load_cluster(context.cluster());
            if (!state) {
              throw Error(ErrorCode::unreachable, "cluster " + context.cluster() + " is not up")
                  .with_hint("dtrain up CLUSTER.yaml");
            }
            RemoteCommand command;
            command.command = {"tail", "-n", std::to_string(options->lines), "-F",
                               paths::HeadRoot{state->head_root}.log().string()};
            return run_remote(context, command).code;
          },
          kOwnTrouble};
}

}  // namespace dtrain::cli

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bring_up.hpp"
#include "launcher/cluster/processes.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain::cli {
namespace {

struct Options {
  std::string file;
  bool yes = false;
};

const char* action_name(UpAction action) {
  switch (action) {
    case UpAction::nothing:
      return "none";
    case UpAction::wait:
      return "waited";
    case UpAction::start_watch:
      return "started";
    case UpAction::build:
      return "built";
    case UpAction::refuse:
      return "refused";
  }
  return "none";
}

int run_up(Context& context, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  ClusterSpec spec;
  if (options.file.empty()) {
    // Without a file: what is current or named, as it was asked for; else this machine.
    std::string name = context.globals.cluster;
    if (name.empty()) name = current_cluster().value_or("local");
    const auto state = load_cluster(name);
    if (state && !state->source.empty()) {
      spec = read_cluster_yaml(state->source, process_environment()).spec;
    } else if (name == "local") {
      spec = built_in_local();
      if (state) spec.provider.local_nodes = static_cast<int>(state->nodes.size());
    } else {
      throw Error(ErrorCode::usage, "which cluster? Cluster " + name + " is not known here")
          .with_hint("dtrain up CLUSTER.yaml");
    }
  } else {
    Read<ClusterSpec> read = read_cluster_yaml(options.file, process_environment());
    for (const Warning& warning : read.warnings) {
      context.note(warning.location.str() + ": " + warning.message);
    }
    spec = std::move(read.spec);
  }
  if (!context.globals.cluster.empty()) spec.cluster_name = context.globals.cluster;
  const UpReport report = bring_up(context, spec);
  set_current_cluster(report.name);
  const auto took = std::chrono::steady_clock::now() - begin;
  if (context.globals.json) {
    nlohmann::json nodes = nlohmann::json::array();
    for (const Machine& machine : report.nodes) {
      nodes.push_back({{"node", machine.node.str()},
                       {"address", machine.address},
                       {"root", machine.root.string()},
                       {"state", "ready"}});
    }
    context.print_json({{"cluster", report.name},
                        {"id", report.id.str()},
                        {"provider", to_string(spec.provider.kind)},
                        {"action", action_name(report.action)},
                        {"nodes", nodes},
                        {"state_folder", report.state.string()}});
    return 0;
  }
  if (context.globals.quiet) return 0;
  const std::string size =
      std::to_string(report.nodes.size()) + (report.nodes.size() == 1 ? " node" : " nodes");
  if (report.action == UpAction::nothing) {
    context.print("cluster " + report.name + " is already up: " + size + " ready\n");
  } else {
    context.print("cluster " + report.name + " is up: " + size + " ready, in " +
                  human_duration(took) + "\n");
    context.print("try: dtrain status, dtrain submit train_job.yaml, dtrain down\n");
  }
  return 0;
}

}  // namespace

ClusterSpec built_in_local() {
  ClusterSpec spec;
  spec.cluster_name = "local";
  spec.provider.kind = ProviderKind::local;
  return spec;
}

UpReport bring_up(const Context& context, const ClusterSpec& spec) {
  // What cannot be brought up at all is said before anything else is looked for.
  make_provider(spec, paths::cluster_state(spec.cluster_name));
  UpOptions options;
  options.agent = find_agent();
  options.say = [&](const std::string& text) { context.note(text); };
  options.evidence = [&](const std::string& line) { context.warn(line); };
  return up(spec, options);
}

Verb add_up(CLI::App& root) {
  auto options = std::make_shared<Options>();
  CLI::App* app = add_verb(root, "up", "Bring a cluster up: its nodes, an agent on each, a head",
                           "  dtrain up configs/local.yaml\n"
                           "  dtrain up                      again, as last time\n");
  app->add_option("file", options->file, "The cluster YAML")->type_name("CLUSTER.yaml");
  app->add_flag("-y,--yes", options->yes, "Ask nothing (up asks nothing yet; for Ray's users)");
  return {app, [options](Context& context) { return run_up(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli

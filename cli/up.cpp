#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bring_up.hpp"
#include "cli/host_flags.hpp"
#include "cli/node_lines.hpp"
#include "cli/preparation.hpp"
#include "cli/ray.hpp"
#include "cli/signals.hpp"
#include "cli/up_words.hpp"
#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/local_paths.hpp"
#include "launcher/cluster/reach_watch.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain::cli {
namespace {

struct UpFlags {
  std::string file;
  bool yes = false;
  bool dry_run = false;
  bool force = false;
  bool no_setup = false;
  bool no_restart = false;
  bool downgrade = false;
  bool replace = false;
  bool persist = false;
  bool accept_new_host_keys = false;
  int min_nodes = 0;
  int seeds = SpreadLimits().seeds;
  HostFlags hosts;
  std::optional<int> workers;  // Ray's; with machines that are there the YAML says which
};

// What the command line asks for: a file, or what is current or named as it was asked for, or this
// machine.
ClusterSpec spec_of(const Context& context, const UpFlags& options) {
  ClusterSpec spec;
  if (options.file.empty()) {
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
  return spec;
}

// A local cluster's nodes are this machine, as it is.
void warn_of_local(const Context& context, const ClusterSpec& spec) {
  std::vector<std::string> unused;
  if (!spec.file_mounts.empty()) unused.emplace_back("file_mounts");
  if (!spec.cluster_synced_files.empty()) unused.emplace_back("cluster_synced_files");
  if (!spec.initialization_commands.empty() || !spec.head_setup_commands.empty() ||
      !spec.worker_setup_commands.empty()) {
    unused.emplace_back("setup commands");
  }
  if (!spec.ready.command.empty() || spec.ready.gpus) unused.emplace_back("ready");
  if (unused.empty()) return;
  context.note("provider local: the nodes are this machine as it is; not used: " +
               join(unused, ", "));
}

// Before machines are made that cost.
bool ask_to_make(const Context& context, const ClusterPlan& plan) {
  const std::string cost = cost_line(plan);
  for (const std::string& warning : plan.warnings) context.note("warning: " + warning);
  const auto answer =
      context.ask(machines_table(plan, context.terminal.color_err) + cost + "\nMake them?");
  if (answer) return *answer;
  throw Error(ErrorCode::conflict, "it would make " + cost)
      .with_hint("dtrain up --dry-run shows which; dtrain up -y if that is meant");
}

// "1 of 4 of type gpu are ready"; empty: none is missing.
std::string missing_machines(const UpReport& report) {
  std::vector<std::string> missing;
  for (const AskedType& type : report.asked) {
    if (type.ready.size() >= static_cast<std::size_t>(type.wanted)) {
      if (type.error) missing.push_back("jobs get none of type " + type.type);
      continue;
    }
    missing.push_back(std::to_string(type.ready.size()) + " of " + std::to_string(type.wanted) +
                      " of type " + type.type + " are ready");
  }
  return join(missing, ", ");
}

int run_up(Context& context, const UpFlags& options) {
  const auto begin = std::chrono::steady_clock::now();
  const ClusterSpec spec = spec_of(context, options);
  if (options.workers) {
    context.note("--min-workers and --max-workers have no effect: the YAML lists the machines");
  }
  UpOptions how;
  how.dry_run = options.dry_run;
  how.replace = options.replace;
  if (options.yes) how.may_make = [](const ClusterPlan&) { return true; };
  how.force = options.force;
  how.no_setup = options.no_setup;
  how.no_restart = options.no_restart;
  how.downgrade = options.downgrade;
  how.persist = options.persist;
  how.min_nodes = options.min_nodes;
  how.seeds = options.seeds;
  how.access = context.access(!options.yes);
  how.access.accept_new_host_keys = options.accept_new_host_keys;
  options.hosts.apply(how);
  const ProviderTraits& traits = traits_of(spec.provider.kind);
  if (traits.here) warn_of_local(context, spec);
  bool is_current = false;  // since long, maybe, and another may have taken its place
  how.with_head = [&](const wire::ApiClient&, const std::stop_token&) {
    set_current_cluster(spec.cluster_name);  // to be looked at while machines are waited for
    is_current = true;
  };
  UpReport report = bring_up(context, spec, std::move(how));
  const bool made = std::any_of(report.each.begin(), report.each.end(), [](const NodeUp& node) {
    return !node.machine.id.empty() && is_live(node.machine.state);
  });
  if (!options.dry_run && (made || !report.id.str().empty())) {
    if (!is_current) set_current_cluster(report.name);
    set_temporary(report.name, false);
  }
  if (context.globals.json && report.with_head) {
    report.warnings.emplace_back(report.with_head->what());
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  if (context.globals.json) {
    context.print_json(report_json(spec, report));
    return report.complete ? 0 : 1;
  }
  if (report.action == UpAction::decline) {
    context.note("left as it is");
    return 1;
  }
  tell_nodes(context, report);
  if (report.action == UpAction::plan) {
    print_plan(context, traits, report);
    return report.complete ? 0 : 1;
  }
  std::vector<std::string> missing;
  for (const NodeUp& node : report.each) {
    if (node.error) missing.push_back(node.machine.node.str());
  }
  if (!missing.empty()) {
    context.warn("cluster " + report.name + ": " + counted(report.nodes.size(), "node") +
                 " ready of " + std::to_string(report.each.size()) +
                 "; not: " + join(missing, ", "));
  }
  if (!report.complete) {
    if (made && traits.costs) {
      context.warn(
          "what was made is there, and costs: dtrain up goes on with it, dtrain down gives "
          "it back");
    }
    if (report.with_head) {
      context.warn(report.with_head->what());
    } else if (const std::string waits = missing_machines(report); !waits.empty()) {
      context.warn("cluster " + report.name + ": " + waits);
    } else if (missing.empty()) {
      context.warn("cluster " + report.name + ": not all that was to leave has left");
    }
    return 1;
  }
  if (context.globals.quiet) return 0;
  // Where the head asks for them its own takes no ranks.
  std::size_t ready = traits.head_asks ? 0 : report.nodes.size();
  for (const AskedType& type : report.asked) ready += type.ready.size();
  const bool grows = std::any_of(report.asked.begin(), report.asked.end(),
                                 [](const AskedType& type) { return type.most > type.wanted; });
  const std::string size =
      counted(ready, "node") + " ready" + (grows ? ", more come when jobs need them" : "");
  if (report.action == UpAction::nothing) {
    context.print("cluster " + report.name + " is already up: " + size + "\n");
  } else {
    context.print("cluster " + report.name + " is up: " + size + ", in " + human_duration(took) +
                  "\n");
    if (traits.head_asks && !spec.head_moves()) {
      context.print("on " + spec.promised().front().node.str() +
                    " run the head, its node agent, which takes no ranks, and their watch: about "
                    "12 MiB of memory, and next to no processor time\n");
    }
    context.print("try: dtrain status, dtrain submit train_job.yaml, dtrain down\n");
  }
  return 0;
}

// What cannot be brought up at all is said before anything else is looked for, and all at once.
void refuse_what_cannot_be(const ClusterSpec& spec, bool has_provider) {
  std::vector<Error> problems = missing_local_paths(spec);
  try {
    if (!has_provider) make_provider(spec, paths::cluster_state(spec.cluster_name));
  } catch (Error& error) {
    if (problems.empty() && error.location()) {
      error.with_hint("the file has no errors; " + error.hint());
    }
    problems.push_back(error);
  }
  std::stable_sort(problems.begin(), problems.end(), [](const Error& a, const Error& b) {
    return a.location().value_or(Location{}).line < b.location().value_or(Location{}).line;
  });
  if (problems.size() == 1) throw problems.front();
  if (!problems.empty()) throw SpecError(std::move(problems));
}

// Machines that join by themselves are to make of themselves what the YAML says.
void prepare_joining(const Context& context, const ClusterSpec& spec, UpOptions& options) {
  if (traits_of(spec.provider.kind).here) return;
  options.with_head = [&context, &spec, first = std::move(options.with_head),
                       again = options.force ? random_hex(8) : std::string(),
                       no_setup = options.no_setup](const wire::ApiClient& head,
                                                    const std::stop_token& stop) {
    if (first) first(head, stop);
    const ProviderTraits& traits = traits_of(spec.provider.kind);
    const bool grows = traits.head_grows && spec.grows();
    if (traits.head_asks || grows || has_preparation(head)) {
      send_preparation(context, head, spec, {again, no_setup, stop});
    }
  };
}

}  // namespace

ClusterSpec built_in_local() {
  ClusterSpec spec;
  spec.cluster_name = "local";
  spec.provider.kind = ProviderKind::local;
  return spec;
}

UpReport bring_up(const Context& context, const ClusterSpec& spec, UpOptions options) {
  refuse_what_cannot_be(spec, options.provider != nullptr);
  options.agent = find_agent();
  options.say = [&](const std::string& text) { context.note(text); };
  options.evidence = [&](const std::string& line) { context.warn(line); };
  if (!options.may_make) {
    options.may_make = [&](const ClusterPlan& plan) { return ask_to_make(context, plan); };
  }
  prepare_joining(context, spec, options);
  if (traits_of(spec.provider.kind).here) return up(spec, options);

  std::vector<NodeId> nodes;
  for (const PromisedNode& node : spec.promised()) {
    if (!node.node.empty()) nodes.push_back(node.node);
  }
  // Ctrl-C, or a terminal that is closed, ends it cleanly: what is done stays, and the next `up`
  // goes on from there. Before any thread is started, so that all of them leave the signal to this
  // one.
  std::stop_source stop;
  options.access.stop = stop.get_token();
  Signals signals({SIGINT, SIGTERM, SIGHUP});
  // Nothing is made while that is asked: Ctrl-C ends all.
  options.may_make = [&, ask = std::move(options.may_make)](const ClusterPlan& plan) {
    const LetThrough through(signals);
    return ask(plan);
  };
  NodeLines lines(options.dry_run ? NodeLines::Form::none : node_lines_form(context),
                  context.terminal, nodes);
  options.progress = [&](const NodeProgress& progress) { lines.show(progress); };
  ReachWatch watch([&](const NodeProgress& progress) { lines.show(progress); });
  options.access.reaching = [&](const NodeId& node, const std::optional<ReachTry>& last) {
    watch.reaching(node, last);
  };
  if (!options.dry_run) {  // which shows no lines
    options.access.warn = [&](const std::string& text) {
      lines.say("dtrain: " + printable(text, true) + "\n");
    };
  }
  if (context.globals.verbose) {
    options.setup_line = [&](const NodeId& node, const std::string& line) {
      lines.say(node.str() + ": " + printable(line, false) + "\n");
    };
    options.detail = options.setup_line;
  }
  const OnSignal interrupt(signals, [&] {
    lines.say("dtrain: stopping; dtrain up goes on from here\n");
    stop.request_stop();
  });
  return up(spec, options);
}

ClusterSpec choose_and_start(Context& context, const std::string& path, bool start) {
  if (!start) return choose_by_yaml(context, path);
  ClusterSpec spec = read_cluster_yaml(path, process_environment()).spec;
  if (!context.globals.cluster.empty()) spec.cluster_name = context.globals.cluster;
  context.globals.cluster = spec.cluster_name;
  const UpReport report = bring_up(context, spec);
  if (!report.complete) {
    tell_nodes(context, report);
    throw Error(ErrorCode::failed, "cluster " + spec.cluster_name + " did not come up");
  }
  return spec;
}

Verb add_up(CLI::App& root) {
  auto options = std::make_shared<UpFlags>();
  CLI::App* app = add_verb(root, "up", "Bring a cluster up: its nodes, an agent on each, a head",
                           "  dtrain up cluster.yaml\n"
                           "  dtrain up                this machine, or again as last time\n");
  app->add_option("file", options->file, "The cluster YAML")->type_name("CLUSTER.yaml");
  app->add_flag("-y,--yes", options->yes,
                "Ask nothing: machines are made whatever they cost, unknown host keys are refused");
  app->add_flag(
      "--dry-run", options->dry_run,
      "Show which machines are kept, made and given back, and why, and what would be done "
      "on each");
  app->add_flag("--replace", options->replace,
                "Give machines back that another image or type made than the YAML now asks for, "
                "drained first, and make them anew");
  app->add_flag("--force", options->force, "Do everything again, whatever is there");
  app->add_flag("--no-setup", options->no_setup, "Run no setup commands");
  app->add_flag("--no-restart", options->no_restart, "Leave agents that run as they are");
  app->add_flag("--downgrade", options->downgrade,
                "Replace agents that run by older ones: those of this dtrain");
  app->add_flag("--restart-only", options->no_setup, "Ray's spelling of --no-setup")->group("");
  for (const char* ray : {"--min-workers", "--max-workers"}) {
    app->add_option(ray, options->workers)->group("");
  }
  add_ray_flags(*app);
  app->add_flag("--persist", options->persist, "Start the agents again after a reboot");
  app->add_flag("--accept-new-host-keys", options->accept_new_host_keys,
                "Pin unknown host keys without asking");
  app->add_option("--min-nodes", options->min_nodes, "Go on with so many nodes")
      ->type_name("N")
      ->check(CLI::Range(1, 10000));
  app->add_option("--seeds", options->seeds,
                  "Of more than 8 hosts, how many get agent and files from this machine, and give "
                  "them to the others (1); 0: all get them from here")
      ->type_name("N")
      ->check(CLI::Range(0, kMaxSeeds));
  options->hosts.add(*app);
  return {.app = app,
          .run = [options](Context& context) { return run_up(context, *options); },
          .unreachable_code = 1};
}

}  // namespace dtrain::cli

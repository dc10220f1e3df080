#include "launcher/cluster/up_parts.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/agents_local.hpp"
#include "launcher/cluster/down.hpp"
#include "launcher/cluster/processes.hpp"
#include "launcher/cluster/settings.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/transport.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kStepLimit = seconds(20);
constexpr std::size_t kSideBySide = 8;  // nodes prepared at once
constexpr auto kSilence =
    std::chrono::seconds(1);  // longer, and the user is told what is waited for

std::vector<NodeId> node_names(int count) {
  std::vector<NodeId> names;
  for (int i = 0; i < count; ++i) names.emplace_back("node-" + std::to_string(i));
  return names;
}

// As nodes_not_ready(), each in words.
std::optional<std::vector<std::string>> not_ready(const ClusterState& state) {
  const auto nodes = nodes_not_ready(paths::head_socket(state.head_root), state.name, state.nodes);
  if (!nodes) return std::nullopt;
  std::vector<std::string> missing;
  for (const auto& [node, said] : *nodes) missing.push_back(node.str() + " (" + said + ")");
  return missing;
}

void show_logs(const ClusterState& state, const fs::path& folder, const UpOptions& options) {
  std::vector<fs::path> logs{paths::WatchRoot{folder}.log(),
                             paths::HeadRoot{state.head_root}.log()};
  for (const Machine& machine : state.nodes) logs.push_back(paths::NodeRoot{machine.root}.log());
  constexpr std::size_t kLines = 4;
  constexpr std::size_t kMostLogs = 4;
  for (std::size_t i = 0; i < logs.size() && i < kMostLogs; ++i) {
    std::optional<std::string> text;
    try {
      text = read_file_if_there(logs[i]);
    } catch (const Error&) {
    }
    if (!text || text->empty()) continue;
    if (text->back() == '\n') text->pop_back();
    std::vector<std::string> lines = split(*text, '\n');
    if (lines.size() > kLines) {
      lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kLines));
    }
    options.evidence(logs[i].string() + ":");
    for (const std::string& line : lines) options.evidence("  " + printable(line, false));
  }
}

// `start_watch` is called when the watch that was there is not any more: it may have been dying
// when it was looked at.
void wait_ready(const ClusterState& state, const fs::path& folder, const UpOptions& options,
                std::function<void()> start_watch) {
  const auto begin = std::chrono::steady_clock::now();
  auto pause = milliseconds(5);
  std::optional<std::vector<std::string>> missing;
  bool watch_seen = false;
  bool said = false;
  while (true) {
    missing = not_ready(state);
    // Without a watch that can be found again, the next `up` would start a second one.
    if (missing && missing->empty() && living_watch(folder)) return;
    const auto waited = std::chrono::steady_clock::now() - begin;
    // A watch that has said that it lives and is gone will not bring anything up any more.
    const bool watch_lives = living_watch(folder).has_value();
    if (!watch_lives && start_watch) {
      std::exchange(start_watch, nullptr)();
      watch_seen = false;  // that was the one before
    }
    watch_seen = watch_seen || watch_lives;
    const bool hopeless = watch_seen && !watch_lives;
    if (hopeless || waited > options.ready_limit) {
      show_logs(state, folder, options);
      std::string message;
      if (hopeless) {
        message = "the watch of cluster " + state.name + " ended at once";
      } else if (!missing) {
        message = "the head of cluster " + state.name + " does not answer after " +
                  human_duration(options.ready_limit);
      } else {
        message =
            "not ready after " + human_duration(options.ready_limit) + ": " + join(*missing, ", ");
      }
      throw Error(hopeless ? ErrorCode::failed : ErrorCode::timeout, message)
          .with_hint("logs are below " + folder.string() + "; dtrain down -c " + state.name +
                     " clears it away");
    }
    if (!said && waited > kSilence) {
      options.say(missing ? "waiting for " + join(*missing, ", ") : "waiting for the head");
      said = true;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(milliseconds(100), pause + pause / 2);
  }
}

// One node: an identity whose key never leaves it, and where the head is.
void prepare_node(const ClusterState& state, const Machine& machine, Transport& node,
                  Transport& head, const std::string& agent) {
  const std::string root = machine.root.string();
  const std::string name = machine.node.str();
  const std::string request = run_or_throw(
      node, {agent, "init-node", "--root", root, "--cluster", state.id.str(), "--node", name}, {},
      kStepLimit, "making the key of " + name);
  const std::string certificates =
      run_or_throw(head, {agent, "sign", "--root", state.head_root.string(), "--node", name},
                   request, kStepLimit, "signing the certificate of " + name);
  run_or_throw(node, {agent, "install-identity", "--root", root}, certificates, kStepLimit,
               "installing the certificate of " + name);
  const nlohmann::json config = {
      {"cluster", state.id.str()},
      {"node", name},
      {"address", machine.address},
      {"head", {{"file", paths::HeadRoot{state.head_root}.config().string()}}}};
  node.put(config.dump(2) + "\n", paths::NodeRoot{machine.root}.config(), 0600);
  // The login shell's files may be slow: a node without its capture is ready all the same, with
  // the environment that /bin/sh gives, and the agent keeps its own limit of 10 s.
  node.start_detached({agent, "capture-env", "--root", root});
}

void prepare_nodes(const ClusterState& state, Provider& provider, const std::string& agent) {
  std::vector<NodeOutcome> outcomes(state.nodes.size());
  std::vector<std::thread> workers;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < state.nodes.size(); i = next++) {
      outcomes[i].node = state.nodes[i].node;
      try {
        const std::unique_ptr<Transport> node = provider.reach(state.nodes[i]);
        const std::unique_ptr<Transport> head = provider.reach(state.nodes.front());
        prepare_node(state, state.nodes[i], *node, *head, agent);
      } catch (const Error& error) {
        outcomes[i].error = error;
      }
    }
  };
  const std::size_t count = std::min(kSideBySide, state.nodes.size());
  for (std::size_t i = 1; i < count; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  std::size_t failed = 0;
  const Error* first = nullptr;
  for (const NodeOutcome& outcome : outcomes) {
    if (!outcome.error) continue;
    if (first == nullptr) first = &*outcome.error;
    ++failed;
  }
  if (first == nullptr) return;
  Error error = *first;
  error.while_doing("preparing " + std::to_string(state.nodes.size()) + " nodes, of which " +
                    std::to_string(failed) + " failed");
  throw error;
}

ClusterState build(const ClusterSpec& spec, Provider& provider, const fs::path& folder,
                   const UpOptions& options) {
  ClusterState state;
  state.name = spec.cluster_name;
  state.id = make_cluster_id(spec.cluster_name);
  state.provider = to_string(spec.provider.kind);
  state.agent = options.agent.string();
  state.spec = to_json(spec);
  state.source = spec.source;
  state.created = rfc3339(std::chrono::system_clock::now());
  state.head_root = folder / "head";
  save_cluster(state);

  const std::vector<NodeId> names = node_names(spec.promised_nodes());
  options.say("making " + std::to_string(names.size()) + (names.size() == 1 ? " node" : " nodes"));
  for (const NodeOutcome& outcome : provider.create(names)) {
    if (outcome.error) throw *outcome.error;
  }
  state.nodes = provider.list();
  if (state.nodes.size() != names.size()) {
    throw Error(ErrorCode::internal, "asked for " + std::to_string(names.size()) +
                                         " nodes, the provider has " +
                                         std::to_string(state.nodes.size()));
  }
  const std::unique_ptr<Transport> head = provider.reach(state.nodes.front());
  std::vector<std::string> init{
      state.agent,  "init-head",    "--root",  state.head_root.string(),
      "--cluster",  state.id.str(), "--name",  state.name,
      "--provider", state.provider, "--nodes", std::to_string(state.nodes.size())};
  if (spec.provider.head_port) {
    init.insert(init.end(), {"--port", std::to_string(*spec.provider.head_port)});
  }
  run_or_throw(*head, init, {}, kStepLimit, "making the head");
  options.say("making identities");
  prepare_nodes(state, provider, state.agent);
  write_watch(state, folder, *head);
  state.prepared = true;
  save_cluster(state);
  return state;
}

// What of a spec a running cluster cannot change. For `local` the rest is of no consequence.
nlohmann::json shape(const nlohmann::json& spec) {
  if (!spec.is_object()) return {};
  return spec.value("provider", nlohmann::json::object());
}

}  // namespace

UpPlan plan_up(const ClusterSpec& wanted, const UpObserved& observed) {
  if (!observed.state) return {UpAction::build, "there is none yet"};
  const ClusterState& state = *observed.state;
  if (!state.prepared) return {UpAction::build, "an earlier up did not come to its end"};
  const auto asked = static_cast<std::size_t>(wanted.promised_nodes());
  if (state.provider != to_string(wanted.provider.kind)) {
    return {UpAction::refuse, "it is up with provider " + state.provider};
  }
  if (asked != state.nodes.size()) {
    return {UpAction::refuse, "it is up with " + std::to_string(state.nodes.size()) +
                                  (state.nodes.size() == 1 ? " node" : " nodes") + ", not " +
                                  std::to_string(asked)};
  }
  if (shape(state.spec) != shape(to_json(wanted))) {
    return {UpAction::refuse, "it is up with another provider section"};
  }
  if (!observed.replace.empty()) return {UpAction::replace, observed.replace};
  if (!observed.watch_lives) return {UpAction::start_watch, "its watch is not running"};
  if (!observed.all_ready) return {UpAction::wait, "it is not ready yet"};
  return {UpAction::nothing, "nothing has changed"};
}

namespace {

UpReport planned(const ClusterSpec& spec, const UpPlan& plan, Provider& provider, UpReport report) {
  std::vector<Machine> machines = provider.list();
  for (int i = static_cast<int>(machines.size()); i < spec.provider.local_nodes; ++i) {
    machines.emplace_back();
    machines.back().node = NodeId("node-" + std::to_string(i));
  }
  for (const Machine& machine : machines) {
    NodeUp node;
    node.machine = machine;
    if (plan.action == UpAction::refuse) {
      node.error = Error(ErrorCode::conflict, "it cannot be changed while it is up: " + plan.reason)
                       .with_hint("dtrain down -c " + spec.cluster_name + " first");
      report.complete = false;
    } else if (plan.action != UpAction::nothing) {
      node.steps.push_back({"start", plan.reason});
    }
    report.each.push_back(std::move(node));
  }
  report.action = UpAction::plan;
  return report;
}

}  // namespace

UpReport up_local(const ClusterSpec& spec, const UpOptions& options) {
  const fs::path folder = paths::cluster_state(spec.cluster_name);
  const std::unique_ptr<Provider> provider = make_provider(spec, folder);
  UpObserved observed;
  observed.state = load_cluster(spec.cluster_name);
  if (observed.state && observed.state->prepared) {
    observed.watch_lives = living_watch(folder).has_value();
    const auto missing = not_ready(*observed.state);
    observed.all_ready = missing && missing->empty();
    const std::vector<FoundProcess> running = running_agents(folder);
    observed.replace = why_replace(running, options);
    if (!observed.replace.empty() || running.empty()) check_versions(folder, running, options);
  }
  const UpPlan plan = plan_up(spec, observed);
  UpReport report;
  report.action = plan.action;
  report.name = spec.cluster_name;
  report.state = folder;
  if (options.dry_run) return planned(spec, plan, *provider, std::move(report));
  ClusterState state;
  switch (plan.action) {
    case UpAction::refuse:
      throw Error(ErrorCode::conflict, "cluster " + spec.cluster_name +
                                           " cannot be changed while it is up: " + plan.reason)
          .with_hint("dtrain down -c " + spec.cluster_name + " first");
    case UpAction::nothing:
    case UpAction::wait:
    case UpAction::change:
    case UpAction::plan:
      state = *observed.state;
      break;
    case UpAction::start_watch:
    case UpAction::replace:
      state = *observed.state;
      state.agent = options.agent.string();
      state.spec = to_json(spec);
      state.source = spec.source;
      save_cluster(state);
      write_watch(state, folder, *provider->reach(state.nodes.front()));
      break;
    case UpAction::build:
      if (observed.state) options.say("clearing away what an earlier up left");
      clear_away(folder);
      try {
        state = build(spec, *provider, folder, options);
      } catch (Error& error) {
        clear_away(folder);
        error.while_doing("bringing up cluster " + spec.cluster_name);
        throw;
      }
      break;
  }
  std::function<void()> start_watch = [&] {
    options.say("starting " + std::to_string(state.nodes.size() + 1) + " agents");
    const std::unique_ptr<Transport> head = provider->reach(state.nodes.front());
    // Head and node agent may be starting one too: the first one holds, and writes who it is.
    head->start_detached({state.agent, "watch", "--root", folder.string()});
  };
  if (plan.action == UpAction::replace) {
    options.say("starting the agents anew; ranks go on");
    replace_agents(folder, options.agent, std::exchange(start_watch, nullptr));
  } else if (plan.action == UpAction::build || plan.action == UpAction::start_watch) {
    std::exchange(start_watch, nullptr)();
  }
  if (plan.action != UpAction::nothing) wait_ready(state, folder, options, start_watch);
  SettingsApplied settings = apply_settings(paths::head_socket(state.head_root), spec);
  report.warnings = std::move(settings.warnings);
  if (settings.changed && plan.action == UpAction::nothing) report.action = UpAction::change;
  report.id = state.id;
  report.nodes = state.nodes;
  return report;
}

}  // namespace dtrain

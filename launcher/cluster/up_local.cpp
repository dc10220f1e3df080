#include "launcher/cluster/up_way.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/agents_local.hpp"
#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/down.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kStepLimit = seconds(20);
constexpr milliseconds kNoWatch{2000};  // all are ready, and no watch is seen
constexpr std::size_t kSideBySide = 8;  // nodes prepared at once
constexpr seconds kSilence(1);          // longer, and the user is told what is waited for

std::string in_words(const std::map<NodeId, std::string>& missing) {
  std::string words;
  for (const auto& [node, said] : missing) {
    words += (words.empty() ? "" : ", ") + node.str() + " (" + said + ")";
  }
  return words;
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
  // The login shell's files may be slow: a node without its capture is ready all the same, with the
  // environment that /bin/sh gives, and the agent keeps its own limit of 10 s.
  node.start_detached({agent, "capture-env", "--root", root});
}

void prepare_nodes(const ClusterState& state, Provider& provider, const std::string& agent) {
  std::vector<std::optional<Error>> errors(state.nodes.size());
  side_by_side(errors.size(), kSideBySide, [&](std::size_t i) {
    try {
      const std::unique_ptr<Transport> node = provider.reach(state.nodes[i]);
      const std::unique_ptr<Transport> head = provider.reach(state.nodes.front());
      prepare_node(state, state.nodes[i], *node, *head, agent);
    } catch (const std::exception& error) {
      errors[i] = as_defect(error);
    }
  });
  const auto failed = std::count_if(errors.begin(), errors.end(),
                                    [](const auto& error) { return error.has_value(); });
  for (std::optional<Error>& error : errors) {
    if (!error) continue;
    error->while_doing("preparing " + std::to_string(errors.size()) + " nodes, of which " +
                       std::to_string(failed) + " failed");
    throw *error;
  }
}

ClusterState build(UpRun& run) {
  const ClusterSpec& spec = run.spec;
  const UpOptions& options = run.options;
  run.known.clear();  // what was there has been cleared away
  run.plan = plan_machines(run, {});
  run.plan.cluster = make_cluster_id(spec.cluster_name);
  options.say("making " + counted(run.plan.nodes.size(), "node"));
  const std::vector<MachineOutcome> made = ask_for_wanted(run);
  ClusterState state = remembered(spec, run.plan.cluster);
  state.agent = options.agent.string();
  state.head_root = run.folder / "head";
  for (const MachineOutcome& outcome : made) {
    if (outcome.error) throw *outcome.error;
    state.nodes.push_back(outcome.machine);
  }
  save_cluster(state);
  const std::unique_ptr<Transport> head = run.provider->reach(state.nodes.front());
  std::vector<std::string> init{
      state.agent,  "init-head",    "--root",  state.head_root.string(),
      "--cluster",  state.id.str(), "--name",  state.name,
      "--provider", state.provider, "--nodes", std::to_string(state.nodes.size())};
  if (spec.provider.head_port) {
    init.insert(init.end(), {"--port", std::to_string(*spec.provider.head_port)});
  }
  run_or_throw(*head, init, {}, kStepLimit, "making the head");
  options.say("making identities");
  prepare_nodes(state, *run.provider, state.agent);
  write_watch(state, run.folder, *head);
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
  // Also of what is half made: building anew would forget machines that are elsewhere.
  if (state.provider != to_string(wanted.provider.kind)) {
    return {UpAction::refuse, "it is up with provider " + state.provider};
  }
  if (!state.prepared) return {UpAction::build, "an earlier up did not come to its end"};
  const auto asked = static_cast<std::size_t>(wanted.promised_nodes());
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

class LocalUp final : public UpWay {
 public:
  explicit LocalUp(UpRun& run) : run_(run) {}

  bool bring_up() override {
    observe();
    run_.report.action = plan_.action;
    if (run_.options.dry_run) {
      planned();
      return false;
    }
    prepare();
    start();
    return true;
  }

  std::vector<Machine> awaited() const override {
    return plan_.action == UpAction::nothing ? std::vector<Machine>() : run_.state.nodes;
  }

  bool joined(const NotReady& missing, milliseconds waited) override {
    const bool watch_lives = living_watch(run_.folder).has_value();
    // Without a watch that can be found again, the next `up` would start a second one.
    if (missing && missing->empty() && watch_lives) return true;
    // The one that was there may have been dying when it was looked at.
    if (!watch_lives && !started_) {
      start_watch();
      watch_seen_ = false;
    }
    // One that dies before it can be found has agents that start no other.
    if (!watch_lives && missing && missing->empty() && waited > kNoWatch && !again_) {
      again_ = true;
      start_watch();
    }
    watch_seen_ = watch_seen_ || watch_lives;
    // A watch that has said that it lives and is gone will not bring anything up any more.
    const bool hopeless = watch_seen_ && !watch_lives;
    if (hopeless || waited > run_.options.ready_limit) give_up(hopeless, missing);
    if (!said_ && waited > kSilence) {
      run_.options.say("waiting for " + (!missing           ? "the head"
                                         : missing->empty() ? "the watch"
                                                            : in_words(*missing)));
      said_ = true;
    }
    return false;
  }

  fs::path socket() const override { return paths::head_socket(run_.state.head_root); }

  void finish(bool told) override {
    if (told && plan_.action == UpAction::nothing) run_.report.action = UpAction::change;
    run_.report.id = run_.state.id;
    run_.report.nodes = run_.state.nodes;
  }

 private:
  void observe() {
    UpObserved observed;
    observed.state = run_.before;
    if (run_.before && run_.before->prepared) {
      run_.state = *run_.before;
      observed.watch_lives = living_watch(run_.folder).has_value();
      const auto missing = nodes_not_ready(socket(), run_.state.name, run_.state.nodes);
      observed.all_ready = missing && missing->empty();
      const std::vector<FoundProcess> running = running_agents(run_.folder);
      observed.replace = why_replace(running, run_.options);
      if (!observed.replace.empty() || running.empty()) {
        check_versions(run_.folder, running, run_.options);
      }
    }
    plan_ = plan_up(run_.spec, observed);
  }

  Error refusal(const std::string& what) const {
    return in_the_way(run_.spec.cluster_name,
                      what + " cannot be changed while it is up: " + plan_.reason);
  }

  void planned() {
    for (const NodePlan& each : run_.plan.nodes) {
      if (each.action == NodeAction::release) continue;
      NodeUp node;
      node.machine = each.machine;
      if (plan_.action == UpAction::refuse) {
        node.error = refusal("it");
        run_.report.complete = false;
      } else if (plan_.action != UpAction::nothing) {
        node.steps.push_back({"start", plan_.reason});
      }
      run_.report.each.push_back(std::move(node));
    }
    run_.report.action = UpAction::plan;
  }

  void prepare() {
    const std::string& name = run_.spec.cluster_name;
    switch (plan_.action) {
      case UpAction::refuse:
        throw refusal("cluster " + name);
      case UpAction::nothing:
      case UpAction::wait:
      case UpAction::change:
      case UpAction::plan:
      case UpAction::decline:
        break;
      case UpAction::start_watch:
      case UpAction::replace:
        run_.state.agent = run_.options.agent.string();
        run_.state.spec = to_json(run_.spec);
        run_.state.source = run_.spec.source;
        save_cluster(run_.state);
        write_watch(run_.state, run_.folder, *head());
        break;
      case UpAction::build:
        if (run_.before) run_.options.say("clearing away what an earlier up left");
        clear_away(run_.folder);
        try {
          run_.state = build(run_);
        } catch (Error& error) {
          clear_away(run_.folder);
          error.while_doing("bringing up cluster " + name);
          throw;
        }
        break;
    }
  }

  std::unique_ptr<Transport> head() { return run_.provider->reach(run_.state.nodes.front()); }

  void start() {
    if (plan_.action == UpAction::replace) {
      run_.options.say("starting the agents anew; ranks go on");
      replace_agents(run_.folder, run_.options.agent, [this] { start_watch(); });
    } else if (plan_.action == UpAction::build || plan_.action == UpAction::start_watch) {
      start_watch();
    }
  }

  void start_watch() {
    started_ = true;
    run_.options.say("starting " + std::to_string(run_.state.nodes.size() + 1) + " agents");
    // Head and node agent may be starting one too: the first one holds, and writes who it is.
    head()->start_detached({run_.state.agent, "watch", "--root", run_.folder.string()});
  }

  [[noreturn]] void give_up(bool hopeless, const NotReady& missing) const {
    show_logs(run_.state, run_.folder, run_.options);
    const std::string& name = run_.state.name;
    const std::string limit = human_duration(run_.options.ready_limit);
    const std::string message =
        hopeless   ? "the watch of cluster " + name + " ended at once"
        : !missing ? "the head of cluster " + name + " does not answer after " + limit
                   : "not ready after " + limit + ": " + in_words(*missing);
    throw Error(hopeless ? ErrorCode::failed : ErrorCode::timeout, message)
        .with_hint("logs are below " + run_.folder.string() + "; dtrain down -c " + name +
                   " clears it away");
  }

  UpRun& run_;
  UpPlan plan_;
  bool started_ = false;     // a watch, by this `up`
  bool watch_seen_ = false;  // that one, or one that was there
  bool again_ = false;       // one was started in the place of one that was never seen
  bool said_ = false;        // what is waited for
};

}  // namespace

std::unique_ptr<UpWay> local_up(UpRun& run) {
  return std::make_unique<LocalUp>(run);
}

}  // namespace dtrain

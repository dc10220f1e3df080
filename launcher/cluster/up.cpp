#include "launcher/cluster/up.hpp"

#include <algorithm>
#include <thread>

#include <nlohmann/json.hpp>

#include "launcher/cluster/asked_machines.hpp"
#include "launcher/cluster/costs.hpp"
#include "launcher/cluster/door.hpp"
#include "launcher/cluster/down_way.hpp"
#include "launcher/cluster/head_place.hpp"
#include "launcher/cluster/known_nodes.hpp"
#include "launcher/cluster/machines.hpp"
#include "launcher/cluster/settings.hpp"
#include "launcher/cluster/up_way.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/version.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {

using std::chrono::milliseconds;

const char* to_string(NodeProgress::State state) noexcept {
  switch (state) {
    case NodeProgress::State::at_work:
      return "at_work";
    case NodeProgress::State::waiting:
      return "waiting";
    case NodeProgress::State::done:
      return "done";
    case NodeProgress::State::ready:
      return "ready";
    case NodeProgress::State::failed:
      return "failed";
  }
  return "?";
}

NotReady nodes_not_ready(const fs::path& socket, const std::string& cluster,
                         const std::vector<Machine>& nodes) {
  try {
    const wire::ApiClient client(socket, cluster);
    if (!client.answers()) return std::nullopt;
    const nlohmann::json status = client.get("/v1/status", std::chrono::seconds(5));
    std::map<NodeId, std::string> missing;
    // A head of an earlier version says nothing of this.
    const std::string problem =
        wire::get_string(wire::member(wire::member(status, "cluster"), "head"), "problem", "");
    for (const Machine& machine : nodes) missing[machine.node] = "not heard of";
    for (const nlohmann::json& node : wire::member(status, "nodes")) {
      const auto found = missing.find(NodeId(wire::get_string(node, "node")));
      if (found == missing.end()) continue;
      found->second = wire::get_string(node, "state");
      const std::string reason = wire::get_string(node, "reason", "");
      if (found->second == "ready") {
        missing.erase(found);
      } else if (!reason.empty()) {
        found->second += ", " + reason;
      }
    }
    if (problem.empty()) return missing;
    for (auto& [node, said] : missing) said += "; the head: " + problem;
    return missing;
  } catch (const Error&) {
    return std::nullopt;
  }
}

ClusterPlan plan_machines(UpRun& run, const SeenNodes& seen) {
  ClusterPlan plan = decide(wanted_nodes(run.spec), seen, run.options.replace);
  for (NodePlan& each : plan.nodes) {
    const bool starts = each.action == NodeAction::start;  // where it is
    const bool wanted = run.spec.has_type(each.machine.type);
    if (each.action != NodeAction::create && !(starts && wanted)) continue;
    const Offer& offer = offer_of(run, each.machine.type);
    if (!starts) each.machine.zone = offer.zone;
    each.machine.price = offer.costs.prices.price;
  }
  return plan;
}

OutcomeSink machine_teller(const UpRun& run) {
  return [&options = run.options](const MachineOutcome& outcome) {
    const Machine& machine = outcome.machine;
    if (outcome.error) return;
    // In a queue it may take long.
    const bool waits = machine.state == MachineState::pending && !machine.reason.empty();
    options.progress(
        {machine.node, waits ? NodeProgress::State::waiting : NodeProgress::State::at_work,
         "machine",
         to_string(machine.state) + (machine.reason.empty() ? "" : ": " + machine.reason),
         milliseconds(0)});
  };
}

std::vector<MachineOutcome> ask_for_wanted(UpRun& run) {
  std::set<std::string> known;
  for (const KnownNode& each : run.known) known.insert(each.machine.id);
  return ask_for_machines(
      *run.provider, run.plan,
      [&](const std::set<std::string>& made) {
        return plan_machines(run, {run.provider->list(), run.known, made});
      },
      {machine_teller(run), run.options.access.stop}, known);
}

Error in_the_way(const std::string& cluster, const std::string& what) {
  return Error(ErrorCode::conflict, what).with_hint("dtrain down -c " + cluster + " first");
}

void refuse_downgrade(const std::string& running, const std::string& wanted) {
  if (!is_newer_version(running, wanted)) return;
  throw Error(ErrorCode::conflict, "the agents that are there are of dtrain " + running +
                                       ", which is newer than this one's, " + wanted)
      .with_hint("use dtrain " + running + " or later; --downgrade replaces them all the same, " +
                 "and --no-restart leaves them as they are");
}

namespace {

void wait_ready(UpRun& run, UpWay& way) {
  if (way.awaited().empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  auto pause = milliseconds(5);
  while (true) {
    const std::vector<Machine> awaited = way.awaited();
    const NotReady missing = awaited.empty()
                                 ? NotReady(std::in_place)
                                 : nodes_not_ready(way.socket(), run.state.name, awaited);
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (way.joined(missing, std::chrono::duration_cast<milliseconds>(waited))) return;
    // The head's own wait would be better; it has no message for it.
    std::this_thread::sleep_for(pause);
    pause = std::min(milliseconds(100), pause + pause / 2);
  }
}

// True when they were news to the head. What hinders it is the head's machine's trouble, where
// machines are told of one by one: what is known of the others is told all the same.
bool tell_settings(UpRun& run, const fs::path& socket) {
  NodeUp* const head = run.report.each.empty() ? nullptr : &run.report.each.front();
  if (head != nullptr && head->error) return false;
  try {
    SettingsApplied settings = apply_settings(socket, run.spec);
    run.report.warnings.insert(run.report.warnings.end(), settings.warnings.begin(),
                               settings.warnings.end());
    std::vector<Machine> made;
    for (const NodeUp& node : run.report.each) made.push_back(node.machine);
    apply_node_types(socket, run.spec, made);
    return settings.changed;
  } catch (const Error& error) {
    if (head == nullptr) throw;
    head->error = error;
    return false;
  }
}

bool has_head(const UpRun& run) {
  return run.report.each.empty() || !run.report.each.front().error;
}

// To whoever called this `up`.
void lend_head(UpRun& run, const fs::path& socket) {
  const std::stop_token& stop = run.options.access.stop;
  if (!run.options.with_head || !has_head(run) || stop.stop_requested()) return;
  try {
    run.options.with_head(wire::ApiClient(socket, run.state.name), stop);
  } catch (const std::exception& error) {
    run.report.with_head = as_defect(error);
    if (traits_of(run.spec.provider.kind).head_asks) throw Error(*run.report.with_head);
  }
}

// What the head says of itself, before the plan is done; absent when there is none. Throws Error
// when it cannot be asked. `there`: as the provider lists them.
std::optional<nlohmann::json> ask_cluster(const UpRun& run, const std::vector<Machine>& there) {
  const Machine* head = nullptr;
  for (const NodePlan& each : run.plan.nodes) {
    const bool runs = each.machine.head && each.machine.state == MachineState::running;
    if (runs && each.action == NodeAction::keep) head = &each.machine;
  }
  const Machine* noted =
      run.before && !run.before->nodes.empty() ? &run.before->nodes.front() : nullptr;
  if (head == nullptr && noted != nullptr) {
    const bool is_listed = std::any_of(there.begin(), there.end(),
                                       [&](const Machine& each) { return each.id == noted->id; });
    if (!is_listed) head = noted;
  }
  if (head == nullptr) return std::nullopt;
  std::optional<ClusterState> cluster;
  if (noted != nullptr && noted->id == head->id && !run.before->head_root.empty()) {
    cluster = run.before;
  } else {
    cluster = cluster_on(*head, run.spec, *run.provider, run.options.agent);
  }
  if (!cluster) return std::nullopt;
  const HeadDoor door = HeadDoor::open(*cluster, *run.provider);
  auto status = ask_head(door.socket(), cluster->name);
  if (!status) throw Error(ErrorCode::unreachable, "it does not answer");
  return status;
}

// What is there, and what is to be done about it. Before machines are made or given back the head
// is asked too: a provider's list may be older than what it sees.
void look(UpRun& run) {
  const std::vector<Machine> noted = run.before ? run.before->nodes : std::vector<Machine>();
  run.known = known_nodes(noted, std::nullopt);
  SeenNodes seen{run.provider->list(), run.known, {}};
  run.there = seen.there;
  run.plan = plan_machines(run, seen);
  const bool settled = run.plan.refused.empty() && !has_action(run.plan, NodeAction::create) &&
                       !has_action(run.plan, NodeAction::start) &&
                       !has_action(run.plan, NodeAction::release) && run.plan.warnings.empty();
  if (settled || !traits_of(run.spec.provider.kind).replaces) return;
  try {
    const auto status = ask_cluster(run, seen.there);
    if (!status) return;
    run.known = known_nodes(noted, status);
    seen.known = run.known;
    run.plan = plan_machines(run, seen);
  } catch (const Error& error) {
    run.plan.warnings.push_back("the head cannot be asked (" + error.message() +
                                "): this goes by the provider's list alone");
  }
}

// Machines that cost are made, or started, when a person has seen what, and said so.
bool may_make(const UpRun& run) {
  const bool makes = has_action(run.plan, NodeAction::create) ||
                     has_action(run.plan, NodeAction::start) ||
                     has_action(run.plan, NodeAction::replace);
  if (!makes || !traits_of(run.spec.provider.kind).costs) return true;
  if (run.options.may_make) return run.options.may_make(run.plan);
  throw Error(ErrorCode::conflict, "it would make machines that cost")
      .with_hint("dtrain up shows which, and asks");
}

// What has left costs no more. A head that was not told before has no account.
void tell_costs_anew(UpRun& run, const fs::path& socket) {
  if (!has_head(run) || run.options.access.stop.stop_requested()) return;
  try {
    tell_costs(run, wire::ApiClient(socket, run.state.name));
  } catch (const std::exception& thrown) {
    run.report.warnings.push_back("what the cluster costs may be less than dtrain status says: " +
                                  as_defect(thrown).message());
  }
}

}  // namespace

UpReport up(const ClusterSpec& spec, const UpOptions& options) {
  if (!valid_cluster_name(spec.cluster_name)) {
    throw Error(ErrorCode::invalid, "\"" + spec.cluster_name + "\" cannot be a cluster's name");
  }
  UpRun run{
      spec, options, paths::cluster_state(spec.cluster_name), options.provider, {}, {}, {}, {}, {},
      {},   {}};
  if (!run.provider) run.provider = make_provider(spec, run.folder, options.access);
  const ProviderTraits& traits = traits_of(spec.provider.kind);
  const std::string provider = to_string(spec.provider.kind);
  if (options.replace && !traits.replaces && !traits.head_asks) {
    throw Error(ErrorCode::usage,
                "provider " + provider + " makes no machines, so none can be replaced")
        .with_hint("dtrain up --force does everything again on those that are there");
  }
  std::optional<ClusterLock> lock = ClusterLock::take(
      spec.cluster_name,
      [&] {
        options.say("another up or down of " + spec.cluster_name + " is at work: waiting for it");
      },
      options.access.stop);
  run.let_go = [&] { lock.reset(); };
  run.before = load_cluster(spec.cluster_name);
  run.report.name = spec.cluster_name;
  run.report.state = run.folder;
  const bool moved = run.before && run.before->provider != provider;
  if (moved && !traits.here) {
    throw in_the_way(spec.cluster_name, "cluster " + spec.cluster_name + " is up with provider " +
                                            run.before->provider);
  }
  if (traits.here) refuse_unnoted(spec.cluster_name);
  look(run);
  refuse_second_head(run);
  run.report.plan = run.plan;
  run.report.warnings = run.plan.warnings;
  if (!run.plan.refused.empty()) throw Error(ErrorCode::conflict, run.plan.refused);
  if (run.plan.cluster.empty()) {
    run.plan.cluster = run.provider->id_of_new(make_cluster_id(spec.cluster_name));
  }
  if (traits.costs) check_cost(run);
  if (run.report.cost && !run.report.cost->refused.empty()) {
    Error refused(ErrorCode::conflict, run.report.cost->refused);
    if (spec.max_cost_location.line > 0) refused.at(spec.max_cost_location);
    refused.with_hint("nothing was made; dtrain up --dry-run shows which machines these are");
    if (!options.dry_run) throw refused;
    run.report.complete = false;
  }
  if (!options.dry_run && !may_make(run)) {
    run.report.action = UpAction::decline;
    run.report.complete = false;
    return std::move(run.report);
  }
  // A second time for what stands in the place of machines that have gone.
  for (int round = 0; round < 2; ++round) {
    const std::unique_ptr<UpWay> way = traits.here ? local_up(run) : hosts_up(run);
    if (!way->bring_up()) {
      if (options.dry_run && traits.head_asks) plan_machines(run);
      if (options.dry_run && traits.head_grows) plan_growth(run);
      break;
    }
    wait_ready(run, *way);
    const bool told = tell_settings(run, way->socket());
    lend_head(run, way->socket());
    // Before any goes that is wanted no more, for the head would ask for another.
    const bool stopped = options.access.stop.stop_requested();
    bool grows = true;
    if (traits.head_grows && has_head(run) && !stopped) grows = tell_growth(run, way->socket());
    way->finish(told);
    run.report.complete = run.report.complete && grows;
    if (traits.costs && !run.report.removed.empty()) tell_costs_anew(run, way->socket());
    if (traits.head_asks && has_head(run)) {
      if (options.access.stop.stop_requested()) {
        run.report.complete = false;
        run.report.warnings.push_back("stopped before the head was told which machines to keep");
      } else {
        keep_machines(run, way->socket());
      }
    }
    if (!has_action(run.plan, NodeAction::replace)) break;
    if (options.access.stop.stop_requested()) {
      run.report.complete = false;
      run.report.warnings.push_back("stopped before machines were made anew; dtrain up makes them");
      break;
    }
    run.before = run.state;
    look(run);
  }
  if (run.report.with_head) run.report.complete = false;
  return std::move(run.report);
}

}  // namespace dtrain

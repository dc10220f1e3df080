#include "launcher/cluster/asked_machines.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/costs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/listing.hpp"
#include "launcher/provider/machine_decision.hpp"
#include "launcher/provider/wanted_types.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/preparation.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstGlance{50};
constexpr milliseconds kLastGlance{15000};  // no oftener does the head ask its provider
constexpr int kGlancePart = 10;
constexpr std::chrono::seconds kAnswerLimit{10};

std::string with_reason(const std::string& state, const std::string& reason) {
  return reason.empty() ? state : state + ": " + reason;
}

constexpr const char* kOther = "made by another launch configuration";
constexpr std::size_t kNamed = 3;  // of nodes, in a line

std::string named(const std::set<std::string>& nodes) {
  return join_some(std::vector<std::string>(nodes.begin(), nodes.end()), kNamed);
}

// With where the YAML has the type.
Error of_type(const ClusterSpec& spec, const std::string& type, const Error& why) {
  Error error(why.code(), "node type " + type + ": " + why.message());
  for (const std::string& doing : why.context()) error.while_doing(doing);
  if (!why.hint().empty()) error.with_hint(why.hint());
  for (const NodeType& each : spec.node_types) {
    if (each.name == type && each.location.line > 0) error.at(each.location);
  }
  return error;
}

// Those of a view of the head's machines that another launch configuration made than is wanted. A
// head of an earlier version does not say.
std::set<std::string> others(const nlohmann::json& machines, const wire::WantedMachines& wanted) {
  std::set<std::string> found;
  for (const nlohmann::json& machine : wire::member(machines, "machines")) {
    const std::string launch = wire::get_string(machine, "launch", "");
    for (const auto& type : wanted.types) {
      const bool is_its = type.name == wire::get_string(machine, "type");
      if (is_its && !launch.empty() && launch != type.launch) {
        found.insert(wire::get_string(machine, "node"));
      }
    }
  }
  return found;
}

class Awaited {
 public:
  Awaited(UpRun& run, wire::WantedMachines wanted) : run_(run), wanted_(std::move(wanted)) {}

  // Those that give way, and are there still; and those that do not, as last seen.
  const std::set<std::string>& going() const { return going_; }
  const std::set<std::string>& stale() const { return stale_; }
  const std::set<std::string>& gone() const { return gone_; }

  // True once none is to come any more.
  bool look(const wire::ApiClient& head) {
    nlohmann::json status;
    try {
      status = head.get("/v1/status", kAnswerLimit);
      away_since_.reset();
    } catch (const Error& error) {  // it is started anew, say
      const auto now = std::chrono::steady_clock::now();
      if (!away_since_) away_since_ = now;
      const bool passes =
          error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
      if (!passes || now - *away_since_ > run_.options.ready_limit) throw;
      waits(head_name(), error.message());
      return false;
    }
    const nlohmann::json& machines = wire::member(status, "machines");
    std::map<std::string, const nlohmann::json*> nodes;
    for (const nlohmann::json& node : wire::member(status, "nodes")) {
      nodes.emplace(wire::get_string(node, "node"), &node);
    }
    for (AskedType& type : run_.report.asked) {
      type.ready.clear();
      type.error.reset();
    }
    see_others(machines);
    for (const nlohmann::json& machine : wire::member(machines, "machines")) {
      const std::string node = wire::get_string(machine, "node");
      const auto here = nodes.find(node);
      if (going_.contains(node)) {
        waits(node, std::string(kOther) + ", and goes once no rank runs there");
        continue;
      }
      AskedType* type = type_of(wire::get_string(machine, "type"));
      if (type == nullptr) continue;
      if (here == nodes.end()) {
        waits(node,
              with_reason(wire::get_string(machine, "state"), wire::get_string(machine, "reason")));
      } else {
        look_at(*type, node, *here->second);
      }
    }
    const bool troubled = has_trouble(machines);  // both are to be looked at
    return is_over(machines) || troubled;
  }

 private:
  std::string head_name() const { return run_.spec.promised().front().node.str(); }

  void see_others(const nlohmann::json& machines) {
    std::set<std::string> others_now = others(machines, wanted_);
    if (!wanted_.replace) {
      stale_ = std::move(others_now);
      return;
    }
    for (const std::string& node : going_) {
      if (!others_now.contains(node)) gone_.insert(node);
    }
    going_ = std::move(others_now);
  }

  AskedType* type_of(const std::string& name) {
    auto& types = run_.report.asked;
    const auto found = std::find_if(types.begin(), types.end(),
                                    [&](const AskedType& type) { return type.type == name; });
    return found == types.end() ? nullptr : &*found;
  }

  // Often many wait for the same: it is told of the first as what takes long.
  void waits(const std::string& node, const std::string& text) {
    if (std::exchange(said_[node], text) == text) return;
    const bool is_news = waits_.insert(text).second;
    run_.options.progress({NodeId(node),
                           is_news ? NodeProgress::State::waiting : NodeProgress::State::at_work,
                           "machine", text, milliseconds(0)});
  }

  void look_at(AskedType& type, const std::string& node, const nlohmann::json& status) {
    const std::string state = wire::get_string(status, "state");
    const std::string reason = wire::get_string(status, "reason", "");
    const bool failed = reason.starts_with(wire::kCannotBePrepared);
    if (state == "ready" && !failed && !reason.starts_with(wire::kIsBeingPrepared)) {
      type.ready.emplace_back(node);
      if (std::exchange(said_[node], state) == state) return;
      run_.options.progress(
          {NodeId(node), NodeProgress::State::ready, "join", "", milliseconds(0)});
      return;
    }
    const std::string text = with_reason(state, reason);
    if (std::exchange(said_[node], text) != text) {
      run_.options.progress(
          {NodeId(node), NodeProgress::State::at_work, "join", text, milliseconds(0)});
    }
    if (failed) {
      type.error = Error(ErrorCode::failed, node + " " + reason)
                       .with_hint("dtrain logs --setup " + node + " shows what was printed");
    }
  }

  // It cannot ask, and not only for a moment.
  bool has_trouble(const nlohmann::json& machines) {
    const auto now = std::chrono::steady_clock::now();
    const auto found = machines.find("trouble");
    if (found == machines.end() || found->is_null()) {
      trouble_since_.reset();
      return false;
    }
    const Error why = wire::error_from_body(*found);
    waits(head_name(), "the head cannot ask: " + why.message());
    if (!trouble_since_) trouble_since_ = now;
    if (now - *trouble_since_ < run_.options.ready_limit) return false;
    for (AskedType& type : run_.report.asked) {
      if (!type.error) type.error = why;
    }
    return true;
  }

  bool is_over(const nlohmann::json& machines) {
    for (const nlohmann::json& each : wire::member(machines, "types")) {
      AskedType* type = type_of(wire::get_string(each, "type"));
      const bool failed = type != nullptr && each.contains("error") && !each["error"].is_null();
      if (failed)
        type->error = of_type(run_.spec, type->type, wire::error_from_body(each["error"]));
    }
    std::size_t ready = 0;
    bool is_over = going_.empty();
    for (const AskedType& type : run_.report.asked) {
      // What cannot be had takes no other's place.
      is_over = is_over || type.error;
    }
    for (const AskedType& type : run_.report.asked) {
      ready += type.ready.size();
      const bool is_full = type.ready.size() >= static_cast<std::size_t>(type.wanted);
      is_over = is_over && (is_full || type.error);
    }
    const int enough = run_.options.min_nodes;
    return is_over || (enough > 0 && ready >= static_cast<std::size_t>(enough));
  }

  UpRun& run_;
  const wire::WantedMachines wanted_;
  std::set<std::string> going_;
  std::set<std::string> stale_;
  std::set<std::string> gone_;
  std::map<std::string, std::string> said_;  // last, of each node
  std::set<std::string> waits_;              // texts that were told
  std::optional<std::chrono::steady_clock::time_point> trouble_since_;
  std::optional<std::chrono::steady_clock::time_point> away_since_;
};

wire::WantedMachines wanted_of(UpRun& run) {
  wire::WantedMachines wanted = run.provider->wanted(run.state.id);
  wanted.replace = run.options.replace;
  for (auto& type : wanted.types) type.launch = launch_hash(run.spec, type.name);
  return wanted;
}

// Gives what the head says of its machines then.
nlohmann::json tell(const wire::WantedMachines& wanted, const wire::ApiClient& head) {
  try {
    return head.post("/v1/machines", wire::to_json(wanted));
  } catch (Error& error) {
    error.while_doing("telling the head which machines to keep");
    throw;
  }
}

// None, as a head hears it that asks already: what it is just having made is in no list yet, and
// goes only as long as the head looks.
wire::WantedMachines no_more(const wire::ApiClient& head) {
  const nlohmann::json now = head.get("/v1/machines", kAnswerLimit);
  const nlohmann::json& last = wire::member(now, "wanted");
  if (last.is_null()) return {};
  wire::WantedMachines wanted = wire::wanted_machines_from_json(last);
  wanted.types.clear();
  wanted.replace = false;
  wanted.down_when_idle.reset();
  return wanted;
}

std::optional<Error> why_none(const UpRun& run, const std::string& type) {
  try {
    run.provider->check(type);
  } catch (const Error& error) {
    return of_type(run.spec, type, error);
  }
  return std::nullopt;
}

// What stays, and what goes, though it is not what the YAML has now.
void tell_of_others(UpRun& run, const std::set<std::string>& stale,
                    const std::set<std::string>& going) {
  std::vector<std::string>& warnings = run.report.warnings;
  if (!stale.empty()) {
    warnings.push_back(named(stale) + ": " + kOther + "; up --replace makes " +
                       (stale.size() == 1 ? "it" : "them") + " anew");
  }
  if (!going.empty()) {
    warnings.push_back(named(going) + ": " + kOther + (going.size() == 1 ? ", goes" : ", go") +
                       " once no rank runs there");
  }
}

void conclude(UpRun& run, const Awaited& awaited) {
  tell_of_others(run, awaited.stale(), awaited.going());
  for (const std::string& node : awaited.gone()) {
    run.report.removed.push_back(node + ": given back, for it was " + kOther);
  }
  if (!awaited.gone().empty() || !awaited.going().empty()) run.report.action = UpAction::change;
  std::size_t ready = 0;
  bool all = true;
  for (const AskedType& type : run.report.asked) {
    ready += type.ready.size();
    all = all && type.ready.size() >= static_cast<std::size_t>(type.wanted);
  }
  const int enough = run.options.min_nodes;
  const bool is_enough = enough > 0 && ready >= static_cast<std::size_t>(enough);
  const bool is_done = all && awaited.going().empty();
  run.report.complete = run.report.complete && (is_done || is_enough);
  if (all || is_enough) return;
  run.report.warnings.push_back(
      "the head goes on asking for what is missing: dtrain status shows "
      "it, dtrain down ends it");
}

}  // namespace

namespace {

// Of those of the head's that are stopped, and cost their disks: which go, and which stay.
void plan_stopped(const wire::WantedMachines& wanted, const std::map<std::string, int>& others,
                  const std::vector<Machine>& stopped, std::vector<NodePlan>& plans) {
  std::map<NodeId, std::string> goes;
  for (const auto& release : surplus_stopped(wanted, others, stopped)) {
    for (const Machine& machine : release.machines) goes.emplace(machine.node, release.reason);
  }
  for (const Machine& machine : stopped) {
    const auto found = goes.find(machine.node);
    NodePlan& plan = plans.emplace_back();
    plan.machine = machine;
    plan.action = found == goes.end() ? NodeAction::keep : NodeAction::release;
    plan.reason = found == goes.end() ? "is stopped" : found->second;
  }
}

}  // namespace

std::vector<NodePlan> plan_asked(const wire::WantedMachines& wanted, std::vector<Machine> there) {
  std::vector<Machine> stopped;
  for (const Machine& each : there) {
    if (each.joins && each.state == MachineState::stopped) stopped.push_back(each);
  }
  sort_by_node(stopped);
  std::erase_if(there, [](const Machine& each) { return each.head || !is_live(each.state); });
  sort_by_node(there);
  std::set<NodeId> in_use;
  for (const Machine& machine : there) in_use.insert(machine.node);
  MachineDecision decision = decide_machines(wanted, there, in_use);
  std::map<NodeId, std::string> goes;
  for (const MachineDecision::Release& release : decision.release) {
    for (const Machine& machine : release.machines) goes.emplace(machine.node, release.reason);
  }
  std::map<std::string, int> others = decision.create;
  for (const Machine& machine : there) others[machine.type] += goes.contains(machine.node) ? 0 : 1;
  std::vector<NodePlan> plans;
  for (Machine& machine : there) {
    if (!machine.joins) continue;
    NodePlan& plan = plans.emplace_back();
    const auto type = std::find_if(wanted.types.begin(), wanted.types.end(),
                                   [&](const auto& each) { return each.name == machine.type; });
    const bool is_other = type != wanted.types.end() && type->launch != machine.launch;
    const auto found = goes.find(machine.node);
    if (found != goes.end()) {
      const bool gives_way = wanted.replace && is_other && decision.create[machine.type] > 0;
      if (gives_way) --decision.create[machine.type];
      plan.action = gives_way ? NodeAction::replace : NodeAction::release;
      plan.reason = found->second;
    } else if (is_other) {
      plan.reason = std::string(kOther) + "; up --replace makes it anew";
      plan.stale = true;
    } else if (machine.state == MachineState::pending) {
      plan.reason = "on its way" + (machine.reason.empty() ? "" : ": " + machine.reason);
    } else {
      plan.reason = machine.reason.empty() ? "is there" : machine.reason;
    }
    plan.machine = std::move(machine);
  }
  plan_stopped(wanted, others, stopped, plans);
  for (const auto& [type, count] : decision.create) {
    Machine machine;
    machine.type = type;
    machine.state = MachineState::pending;
    for (int i = 0; i < count; ++i) {
      plans.push_back({NodeAction::create, machine, "there is none yet", false});
    }
  }
  return plans;
}

namespace {

std::vector<Machine> of_this_cluster(const UpRun& run, std::vector<Machine> machines) {
  std::erase_if(machines, [&](const Machine& each) {
    return run.report.id.empty() || each.cluster != run.report.id;
  });
  return machines;
}

}  // namespace

void plan_growth(UpRun& run) {
  if (run.report.id.empty()) return;  // nobody has asked for any
  wire::WantedMachines wanted;
  wanted.replace = run.options.replace;
  wanted.max_workers = most_workers(run.spec);
  wanted.cache_stopped_nodes = run.spec.provider.cache_stopped_nodes;
  for (const ClusterSpec::Workers& workers : run.spec.workers()) {
    if (workers.most == 0) continue;
    wanted.types.push_back(wanted_type(run.spec, workers));
    wanted.types.back().launch = launch_hash(run.spec, workers.type);
  }
  for (NodePlan& each : plan_asked(wanted, of_this_cluster(run, run.provider->list()))) {
    if (each.action != NodeAction::create) run.report.plan.nodes.push_back(std::move(each));
  }
}

void plan_machines(UpRun& run) {
  const wire::WantedMachines wanted = wanted_of(run);
  std::set<std::string> asks;
  for (NodePlan& each : plan_asked(wanted, of_this_cluster(run, run.provider->asked_for()))) {
    if (each.action == NodeAction::create)
      each.machine.zone = run.provider->offer(each.machine.type).zone;
    const bool is_new = each.action == NodeAction::create || each.action == NodeAction::replace;
    if (is_new) asks.insert(each.machine.type);
    run.report.plan.nodes.push_back(std::move(each));
  }
  run.report.asked.clear();
  for (const auto& type : wanted.types) {
    AskedType& asked =
        run.report.asked.emplace_back(AskedType{type.name, type.count, type.max_workers, {}, {}});
    if (asks.contains(type.name) || type.grows()) asked.error = why_none(run, type.name);
    run.report.complete = run.report.complete && !asked.error;
  }
}

bool tell_growth(UpRun& run, const fs::path& socket) {
  bool is_whole = true;
  run.report.asked.clear();
  try {
    const wire::ApiClient head(socket, run.state.name);
    tell_costs(run, head);
    wire::WantedMachines wanted = wanted_of(run);
    if (wanted.provider.empty()) wanted = no_more(head);
    std::set<std::string> stale = others(tell(wanted, head), wanted);
    // Of those that `up` makes the plan has said it.
    for (const NodePlan& each : run.plan.nodes) stale.erase(each.machine.node.str());
    tell_of_others(run, wanted.replace ? std::set<std::string>() : stale,
                   wanted.replace ? stale : std::set<std::string>());
    for (const auto& type : wanted.types) {
      const std::optional<Error> why = why_none(run, type.name);
      is_whole = is_whole && !why;
      if (!type.grows() && !why) continue;
      run.report.asked.push_back({type.name, 0, type.max_workers, {}, why});
    }
  } catch (const std::exception& thrown) {
    const Error error = as_defect(thrown);
    // It goes on as it was told last, where a person counts on something else.
    const bool is_bounded = run.spec.max_cost_per_hour || run.spec.down_when_idle;
    is_whole = !is_bounded;
    std::string text =
        (is_bounded ? "the head was not told what it may ask for, what that may cost and when the "
                      "cluster goes down: "
                    : "jobs get no more machines than there are: ") +
        error.message();
    if (!error.hint().empty()) text += " (" + error.hint() + ")";
    run.report.warnings.push_back(std::move(text));
  }
  return is_whole;
}

milliseconds next_glance(milliseconds pause) {
  return std::clamp(pause + pause / kGlancePart, kFirstGlance, kLastGlance);
}

void keep_machines(UpRun& run, const fs::path& socket) {
  const wire::WantedMachines wanted = wanted_of(run);
  run.report.asked.clear();
  // What is to stand ready the head asks for at once; what only jobs may need nobody would hear of.
  std::map<std::string, Error> refused;
  for (const auto& type : wanted.types) {
    run.report.asked.push_back({type.name, type.count, type.max_workers, {}, {}});
    if (type.count > 0 || !type.grows()) continue;
    if (const auto why = why_none(run, type.name)) refused.emplace(type.name, *why);
  }
  const wire::ApiClient head(socket, run.state.name);
  tell(wanted, head);
  run.let_go();  // this may take days, and whoever ends the cluster meanwhile need not wait
  Awaited awaited(run, wanted);
  std::mutex mutex;
  std::condition_variable_any wake;
  milliseconds pause = next_glance(milliseconds(0));
  const std::stop_token& stop = run.options.access.stop;
  while (!awaited.look(head) && !stop.stop_requested()) {
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, pause, [] { return false; });
    pause = next_glance(pause);
  }
  conclude(run, awaited);
  for (AskedType& type : run.report.asked) {
    const auto why = refused.find(type.type);
    if (why == refused.end()) continue;
    if (!type.error) type.error = why->second;
    run.report.complete = false;
  }
}

}  // namespace dtrain

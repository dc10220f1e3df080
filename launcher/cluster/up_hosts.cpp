#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/cluster/down_way.hpp"
#include "launcher/cluster/head_desk.hpp"
#include "launcher/cluster/machines.hpp"
#include "launcher/cluster/node_down.hpp"
#include "launcher/cluster/node_up.hpp"
#include "launcher/cluster/up_way.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

// `up` of machines that are there: all of them side by side.
namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HostsUp final : public UpWay {
 public:
  explicit HostsUp(UpRun& run) : run_(run) {}

  bool bring_up() override {
    bring_up_nodes(run_.options.dry_run ? planned_machines() : made_machines());
    const std::optional<HeadDesk::Head> head = desk_.head_if_open();
    if (run_.options.dry_run) {
      planned(head);
      return false;
    }
    // Also when it failed: its logs can be read, and what is there can be taken down.
    if (head) save(*head);
    if (!head || run_.report.each.front().error) {
      run_.report.action = UpAction::change;
      run_.report.complete = false;
      return false;
    }
    door_.emplace(HeadDoor::open(run_.state, *run_.provider));
    return true;
  }

  std::vector<Machine> awaited() const override {
    std::vector<Machine> started;
    for (const NodeUp& node : run_.report.each) {
      if (!node.error) started.push_back(node.machine);
    }
    return started;
  }

  bool joined(const NotReady& missing, milliseconds waited) override {
    const bool over =
        waited > run_.options.ready_limit || run_.options.access.stop.stop_requested();
    bool all = true;
    std::vector<NodeUp*> lost;
    for (NodeUp& node : run_.report.each) {
      if (node.error || ready_.contains(node.machine.node)) continue;
      std::string why = "the head does not answer";
      if (missing) {
        const auto said = missing->find(node.machine.node);
        if (said == missing->end()) {
          ready_.insert(node.machine.node);
          tell(node.machine.node, NodeProgress::State::ready, "");
          continue;
        }
        why = said->second;
      }
      if (over) {
        did_not_join(node, why, waited);
        lost.push_back(&node);
      } else {
        all = false;
        tell(node.machine.node, NodeProgress::State::at_work, why);
      }
    }
    // Their logs are only an addition, which who pressed Ctrl-C does not wait for.
    if (!run_.options.access.stop.stop_requested()) {
      side_by_side(lost.size(), static_cast<std::size_t>(run_.options.max_parallel),
                   [&](std::size_t i) { read_logs(*lost[i]); });
    }
    return all;
  }

  fs::path socket() const override { return door_->socket(); }

  void finish(bool told) override {
    if (told) {
      run_.report.each.front().steps.push_back({"settings", "told the head what it may delete"});
    }
    release_unwanted();
    conclude();
  }

 private:
  // Those that a dry run can look at run already.
  std::vector<MachineOutcome> planned_machines() const {
    std::vector<MachineOutcome> machines;
    for (const NodePlan& each : run_.plan.nodes) {
      if (each.action == NodeAction::keep || each.action == NodeAction::create) {
        machines.push_back({each.machine, std::nullopt});
      }
    }
    return machines;
  }

  // What is asked for must be found again, whatever becomes of this `up`.
  std::vector<MachineOutcome> made_machines() {
    if (!run_.before && has_action(run_.plan, NodeAction::create)) {
      save_cluster(remembered(run_.spec, run_.plan.cluster));
    }
    return make_wanted(run_);
  }

  // One that is not there is not looked at; without the head's, nobody waits for it.
  bool skip(const MachineOutcome& made, NodeUp& node) {
    if (!made.error && made.machine.state == MachineState::running) return false;
    node.machine = made.machine;
    node.error = made.error;
    if (!made.error) node.steps.push_back({"machine", "make it, prepare it and start the agents"});
    if (made.machine.head) {
      desk_.fail(made.error.value_or(Error(ErrorCode::not_found, "there is no cluster yet")));
    }
    return true;
  }

  void bring_up_nodes(const std::vector<MachineOutcome>& machines) {
    const auto binary = AgentBinary::load(run_.options.agent);
    run_.report.each.assign(machines.size(), {});
    // Ctrl-C: each machine's work sees it between two steps; what waits for a machine that says
    // nothing is cut off a little later.
    std::jthread cutter([&](const std::stop_token& over) {
      std::mutex mutex;
      std::condition_variable_any changed;
      // Before the lock: a stop that was asked for already calls it at once.
      const std::stop_callback wake(run_.options.access.stop, [&] {
        const std::lock_guard inside(mutex);
        changed.notify_all();
      });
      std::unique_lock lock(mutex);
      const auto asked = [&] { return run_.options.access.stop.stop_requested(); };
      changed.wait(lock, over, asked);
      if (over.stop_requested()) return;
      changed.wait_for(lock, over, seconds(3), [] { return false; });
      if (!over.stop_requested()) run_.provider->hang_up();
    });
    const bool is_spread =
        machines.size() > kFewHosts && run_.options.seeds > 0 && !run_.options.dry_run;
    SpreadLimits limits;
    limits.seeds = run_.options.seeds;
    std::shared_ptr<Spread> spread;
    std::shared_ptr<Parcels> parcels;
    if (is_spread) {
      spread = std::make_shared<Spread>(limits, run_.options.access.stop, say_of("agent"));
      parcels =
          std::make_shared<Parcels>(run_.folder, limits, run_.options.access.stop, say_of("files"));
    }
    // The head is the first, and so begun before any that waits for it.
    side_by_side(machines.size(), static_cast<std::size_t>(run_.options.max_parallel),
                 [&](std::size_t i) {
                   if (skip(machines[i], run_.report.each[i])) return;
                   NodeTask task;
                   task.machine = machines[i].machine;
                   task.head = i == 0;
                   if (run_.before) task.known = run_.before->id;
                   task.spread = spread;
                   task.parcels = parcels;
                   run_.report.each[i] =
                       bring_up_node(run_.spec, run_.options, *run_.provider, binary, desk_, task);
                 });
    for (const NodePlan& plan : run_.plan.nodes) {
      for (NodeUp& node : run_.report.each) {
        if (plan.stale && node.machine.node == plan.machine.node) {
          node.warnings.push_back(plan.reason);
        }
      }
    }
  }

  std::function<void(const std::string&, const std::string&)> say_of(const char* what) const {
    return [this, what](const std::string& host, const std::string& words) {
      if (run_.options.detail) run_.options.detail(NodeId(host), what + (" " + words));
    };
  }

  void planned(const std::optional<HeadDesk::Head>& head) {
    run_.report.action = UpAction::plan;
    if (head) run_.report.id = head->cluster;
    for (const NodeUp& node : run_.report.each) {
      run_.report.complete = run_.report.complete && !node.error;
    }
    if (run_.before) run_.report.plan = plan_machines(run_, known_nodes(*run_.before).nodes);
    for (const NodePlan& each : going(run_.report.plan)) {
      run_.report.removed.push_back(each.machine.node.str() + ": would go");
    }
  }

  bool is_wanted(const NodeId& node) const {
    return std::any_of(run_.report.each.begin(), run_.report.each.end(),
                       [&](const NodeUp& each) { return each.machine.node == node; });
  }

  bool was_there(const NodeId& node) const {
    return run_.before && std::any_of(run_.before->nodes.begin(), run_.before->nodes.end(),
                                      [&](const Machine& machine) { return machine.node == node; });
  }

  // What this machine must know to find the cluster again, `down` included: also nodes that failed
  // half way and nodes that are to go.
  void save(const HeadDesk::Head& head) {
    run_.state = remembered(run_.spec, head.cluster);
    run_.state.head_root = head.found.root;
    run_.state.head_socket = paths::head_socket_of(head.found.root);
    run_.state.agent = head.agent;
    if (run_.before && run_.before->id == head.cluster) run_.state.created = run_.before->created;
    run_.state.prepared = true;
    // A new host that was never reached has nothing of ours, and is not to be looked for.
    for (const NodeUp& node : run_.report.each) {
      if (!node.error || !node.machine.root.empty() || was_there(node.machine.node)) {
        run_.state.nodes.push_back(node.machine);
      }
    }
    if (run_.before && run_.before->id == head.cluster) {
      for (const Machine& machine : run_.before->nodes) {
        if (!is_wanted(machine.node)) run_.state.nodes.push_back(machine);
      }
    }
    if (!run_.before || to_json(*run_.before) != to_json(run_.state)) save_cluster(run_.state);
    run_.report.id = run_.state.id;
  }

  void tell(const NodeId& node, NodeProgress::State state, const std::string& text) const {
    run_.options.progress({node, state, "join", text, milliseconds(0)});
  }

  // It was started and did not join: most often it cannot reach the head's port.
  void did_not_join(NodeUp& each, const std::string& why, milliseconds waited) {
    const std::string node = each.machine.node.str();
    Error error(ErrorCode::timeout,
                "it did not join the head within " + human_duration(waited) + " (" + why + ")");
    error.while_doing("join on " + node);
    const auto head = desk_.head_if_open();
    if (head && !head->addresses.empty()) {
      error.with_hint(node + " must reach " + join_addresses(*head) +
                      " by TCP; set provider.head_address, or open the port");
    }
    each.error = error;
    tell(each.machine.node, NodeProgress::State::failed, why);
  }

  void read_logs(NodeUp& each) const {
    try {
      const auto transport = run_.provider->reach(each.machine);
      AgentSession session = AgentSession::open(*transport, AgentBinary::load(run_.options.agent));
      session.open_node(
          {run_.state.id, each.machine.node, run_.spec.provider.root, false, false, {}});
      for (const wire::LogTail& log : session.read_logs({false, 10}).logs) {
        each.tail.push_back(log.path + ":");
        for (const std::string& line : log.lines) each.tail.push_back("  " + line);
      }
    } catch (const std::exception&) {  // nor must they hide what was wrong
    }
  }

  static std::string join_addresses(const HeadDesk::Head& head) {
    return dtrain::join(head.addresses, " or ") + ", port " + std::to_string(head.found.port);
  }

  struct Known {
    std::vector<Machine> nodes;  // of this machine's notes, and of the head
    std::set<NodeId> head;       // that the head counts among its own
  };

  // Of a head that does not answer only the notes.
  Known known_nodes(const ClusterState& notes) {
    Known known{notes.nodes, {}};
    try {
      if (!door_) door_.emplace(HeadDoor::open(notes, *run_.provider));
    } catch (const Error&) {  // whoever needs it says so
      return known;
    }
    const auto status = ask_head(door_->socket(), notes.name);
    if (!status) return known;
    for (const nlohmann::json& node : wire::member(*status, "nodes")) {
      if (wire::get_string(node, "state") == "gone") continue;
      Machine machine;
      machine.node = NodeId(wire::get_string(node, "node"));
      machine.address = wire::get_string(node, "address", "");
      known.head.insert(machine.node);
      const bool noted =
          std::any_of(notes.nodes.begin(), notes.nodes.end(),
                      [&](const Machine& each) { return each.node == machine.node; });
      if (!noted) known.nodes.push_back(std::move(machine));
    }
    return known;
  }

  // What is not wanted any more, or gives way. A host that only the head knows is not for this
  // machine to take away, which could not clean it: it stays, and is named.
  std::vector<NodePlan> going(const ClusterPlan& plan) {
    std::vector<NodePlan> plans;
    for (const NodePlan& each : plan.nodes) {
      if (each.action != NodeAction::release && each.action != NodeAction::replace) continue;
      const Machine& machine = each.machine;
      if (machine.id.empty() && !machine.host && machine.state != MachineState::gone) {
        run_.report.warnings.push_back(machine.node.str() +
                                       " is in the cluster and not in this YAML; up with it taken "
                                       "out, or down, where it was brought up removes it");
        continue;
      }
      plans.push_back(each);
    }
    return plans;
  }

  // No new ranks there, and when those that run are over, they leave and are cleaned; what was made
  // is given back.
  void release_unwanted() {
    const Known known = known_nodes(run_.state);
    std::vector<Machine> given;
    const std::vector<NodePlan> plans = going(plan_machines(run_, known.nodes));
    for (const NodePlan& each : plans) {
      const Machine& machine = each.machine;
      const bool made = !machine.id.empty();
      NodeGone gone{"not in the cluster", true, true};
      if (!made || known.head.contains(machine.node)) {
        gone = take_node_away(*run_.provider, run_.state, machine, *door_, run_.options);
      }
      run_.report.removed.push_back(machine.node.str() + ": " + gone.text);
      if (made && gone.left && machine.state != MachineState::gone) given.push_back(machine);
      if (!gone.complete && !(made && gone.left)) continue;
      std::erase_if(run_.state.nodes, [&](const Machine& other) {
        return other.node == machine.node && other.id == machine.id;
      });
    }
    for (const MachineOutcome& outcome :
         give_back(*run_.provider, given, {{}, run_.options.access.stop})) {
      not_given_back_ = not_given_back_ || outcome.error.has_value();
      run_.report.removed.push_back(
          outcome.machine.node.str() + ": machine " + outcome.machine.id + " is " +
          (outcome.error ? "there still: " + outcome.error->message()
                         : std::string(to_string(outcome.machine.state))));
    }
    if (!plans.empty()) save_cluster(run_.state);
  }

  void conclude() {
    std::size_t ready = 0;
    bool changed = !run_.report.removed.empty() || !run_.before;
    run_.report.nodes.clear();
    for (const NodeUp& node : run_.report.each) {
      changed = changed || !node.steps.empty() || node.error;
      if (node.error) continue;
      ++ready;
      run_.report.nodes.push_back(node.machine);
    }
    run_.report.action = changed ? UpAction::change : UpAction::nothing;
    const std::size_t wanted =
        run_.options.min_nodes > 0
            ? std::min(static_cast<std::size_t>(run_.options.min_nodes), run_.report.each.size())
            : run_.report.each.size();
    run_.report.complete = ready >= wanted && !not_given_back_;
  }

  UpRun& run_;
  HeadDesk desk_;
  std::set<NodeId> ready_;  // and told so
  bool not_given_back_ = false;
  std::optional<HeadDoor> door_;
};

}  // namespace

std::unique_ptr<UpWay> hosts_up(UpRun& run) {
  return std::make_unique<HostsUp>(run);
}

}  // namespace dtrain

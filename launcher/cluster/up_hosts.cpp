#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/cluster/down_way.hpp"
#include "launcher/cluster/hang_up.hpp"
#include "launcher/cluster/head_desk.hpp"
#include "launcher/cluster/hosts_work.hpp"
#include "launcher/cluster/known_nodes.hpp"
#include "launcher/cluster/machines.hpp"
#include "launcher/cluster/nodes_leave.hpp"
#include "launcher/cluster/up_way.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"

// `up` of machines that are reached from here: all of them side by side.
namespace dtrain {
namespace {

using std::chrono::milliseconds;

class HostsUp final : public UpWay {
 public:
  explicit HostsUp(UpRun& run) : run_(run) {}

  bool bring_up() override {
    const std::vector<MachineOutcome> asked =
        run_.options.dry_run ? planned_machines() : asked_machines();
    run_.report.each.assign(asked.size(), {});
    for (std::size_t i = 0; i < asked.size(); ++i) run_.report.each[i].machine = asked[i].machine;
    since_.resize(asked.size());
    at_work_ = asked.size();
    work_.emplace(run_, desk_, asked);
    while (!is_head_done_) settle(work_->take());
    const bool is_there = desk_.head_if_open() && !run_.report.each.front().error;
    if (!is_there || run_.options.dry_run) {
      work_->give_up_pending();
      while (at_work_ > 0) settle(work_->take());
      work_.reset();
    }
    const std::optional<HeadDesk::Head> head = desk_.head_if_open();
    if (run_.options.dry_run) {
      planned(head);
      return false;
    }
    // Also when it failed: its logs can be read, and what is there can be taken down.
    if (head) save(*head);
    const bool has_roots =
        std::any_of(run_.report.each.begin(), run_.report.each.end(),
                    [](const NodeUp& node) { return !node.machine.root.empty(); });
    if (head || !has_roots) clear_unnoted(run_.spec.cluster_name);
    if (!is_there) {
      run_.report.action = UpAction::change;
      run_.report.complete = false;
      return false;
    }
    door_.emplace(HeadDoor::open(run_.state, *run_.provider));
    return true;
  }

  std::vector<Machine> awaited() const override {
    std::vector<Machine> started;
    for (const std::size_t i : started_) started.push_back(run_.report.each[i].machine);
    return started;
  }

  bool joined(const NotReady& missing, milliseconds) override {
    const bool stopped = run_.options.access.stop.stop_requested();
    const auto now = std::chrono::steady_clock::now();
    std::vector<NodeUp*> lost;
    std::erase_if(started_, [&](std::size_t i) {
      NodeUp& node = run_.report.each[i];
      std::string why = "the head does not answer";
      if (missing) {
        const auto said = missing->find(node.machine.node);
        if (said == missing->end()) {
          tell(node.machine.node, NodeProgress::State::ready, "");
          ++ready_;
          return true;
        }
        why = said->second;
      }
      const auto waited = std::chrono::duration_cast<milliseconds>(now - since_[i]);
      if (waited <= run_.options.ready_limit && !stopped) {
        tell(node.machine.node, NodeProgress::State::at_work, why);
        return false;
      }
      did_not_join(node, why, waited);
      lost.push_back(&node);
      return true;
    });
    // Their logs are only an addition, which who pressed Ctrl-C does not wait for.
    if (!stopped) {
      side_by_side(lost.size(), static_cast<std::size_t>(run_.options.max_parallel),
                   [&](std::size_t i) { read_logs(*lost[i]); });
    }
    if (run_.options.min_nodes > 0 && ready_ >= run_.options.min_nodes && work_) {
      work_->give_up_pending();
    }
    // The head is asked about these the next time.
    while (at_work_ > 0) {
      std::optional<HostsWork::Done> done = work_->take_if_done();
      if (!done) break;
      settle(std::move(*done));
    }
    if (at_work_ > 0) return false;
    work_.reset();
    return started_.empty();
  }

  fs::path socket() const override { return door_->socket(); }

  void finish(bool told) override {
    if (const auto head = desk_.head_if_open()) save(*head);
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
      if (each.action != NodeAction::release && each.action != NodeAction::replace) {
        machines.push_back({each.machine, std::nullopt});
      }
    }
    return machines;
  }

  // What is asked for must be found again, whatever becomes of this `up`.
  std::vector<MachineOutcome> asked_machines() {
    const bool makes =
        has_action(run_.plan, NodeAction::create) || has_action(run_.plan, NodeAction::start);
    if (!run_.before) {
      if (makes) {
        save_cluster(remembered(run_.spec, run_.plan.cluster));
      } else {  // which cluster it is, their head's machine says
        set_unnoted(run_.spec.cluster_name, run_.spec.source);
      }
    }
    std::vector<MachineOutcome> asked = ask_for_wanted(run_);
    if (makes) note(asked);
    return asked;
  }

  static bool is_made(const Machine& machine) {
    return !machine.id.empty() && machine.state != MachineState::gone;
  }

  // At once, for the provider's list may miss it for a while. Notes begin with the head's machine.
  void note(const std::vector<MachineOutcome>& asked) const {
    if (asked.empty() || !is_made(asked.front().machine)) return;
    const bool is_same = run_.before && run_.before->id == run_.plan.cluster;
    ClusterState state = is_same ? *run_.before : remembered(run_.spec, run_.plan.cluster);
    std::set<std::string> noted;
    for (const Machine& machine : state.nodes) noted.insert(machine.id);
    for (const MachineOutcome& each : asked) {
      const Machine& machine = each.machine;
      if (is_made(machine) && noted.insert(machine.id).second) state.nodes.push_back(machine);
    }
    save_cluster(state);
  }

  // A machine's work is done; it is to join now, or has failed.
  void settle(HostsWork::Done done) {
    NodeUp& node = run_.report.each[done.number];
    node = std::move(done.node);
    if (stale_.empty()) {
      for (const NodePlan& plan : run_.plan.nodes) {
        stale_.emplace(plan.machine.node, plan.stale ? plan.reason : "");
      }
    }
    const std::string& reason = stale_[node.machine.node];
    if (!reason.empty()) node.warnings.push_back(reason);
    if (!node.error) started_.push_back(done.number);
    since_[done.number] = std::chrono::steady_clock::now();
    is_head_done_ = is_head_done_ || done.number == 0;
    --at_work_;
  }

  // What the head says counts too, also where this machine has no notes of its cluster.
  void planned(const std::optional<HeadDesk::Head>& head) {
    run_.report.action = UpAction::plan;
    for (const NodeUp& node : run_.report.each) {
      run_.report.complete = run_.report.complete && !node.error;
    }
    if (head) {
      run_.report.id = head->cluster;
      run_.state = state_with(*head);
      run_.report.plan = plan_now(noted_before(), status_now());
    }
    for (const NodePlan& each : going(run_.report.plan)) {
      run_.report.removed.push_back(each.machine.node.str() + ": would go");
    }
  }

  std::vector<Machine> noted_before() const {
    return run_.before ? run_.before->nodes : std::vector<Machine>();
  }

  // Absent when the head cannot be asked.
  std::optional<nlohmann::json> status_now() {
    try {
      if (!door_) door_.emplace(HeadDoor::open(run_.state, *run_.provider));
    } catch (const Error&) {  // whoever needs it says so
      return std::nullopt;
    }
    return ask_head(door_->socket(), run_.state.name);
  }

  ClusterPlan plan_now(const std::vector<Machine>& noted,
                       const std::optional<nlohmann::json>& status) {
    run_.known = known_nodes(noted, status);
    return plan_machines(run_, {run_.provider->list(), run_.known, {}});
  }

  // What this machine must know to find the cluster again, `down` included: also nodes that failed
  // half way and nodes that are to go.
  ClusterState state_with(const HeadDesk::Head& head) const {
    ClusterState state = remembered(run_.spec, head.cluster);
    state.head_root = head.found.root;
    state.head_socket = paths::head_socket_of(head.found.root);
    state.agent = head.agent;
    const bool is_same = run_.before && run_.before->id == head.cluster;
    if (is_same) state.created = run_.before->created;
    state.prepared = true;
    std::set<NodeId> before;
    for (const Machine& machine : noted_before()) before.insert(machine.node);
    std::set<NodeId> wanted;
    for (const NodeUp& node : run_.report.each) {
      wanted.insert(node.machine.node);
      // A new host that was never reached has nothing of ours, and is not to be looked for.
      if (!node.error || is_made(node.machine) || !node.machine.root.empty() ||
          before.contains(node.machine.node)) {
        state.nodes.push_back(node.machine);
      }
    }
    if (!is_same) return state;
    for (const Machine& machine : run_.before->nodes) {
      if (!wanted.contains(machine.node)) state.nodes.push_back(machine);
    }
    return state;
  }

  void save(const HeadDesk::Head& head) {
    const bool is_first = run_.state.id.empty();
    const nlohmann::json was =
        is_first && run_.before ? to_json(*run_.before) : to_json(run_.state);
    run_.state = state_with(head);
    if (was != to_json(run_.state)) save_cluster(run_.state);
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

  // What is not wanted any more, or gives way.
  std::vector<NodePlan> going(const ClusterPlan& plan) {
    std::vector<std::string>& warnings = run_.report.warnings;
    for (const std::string& each : plan.warnings) {
      if (std::find(warnings.begin(), warnings.end(), each) == warnings.end()) {
        warnings.push_back(each);
      }
    }
    std::vector<NodePlan> plans;
    for (const NodePlan& each : plan.nodes) {
      if (each.action == NodeAction::release || each.action == NodeAction::replace) {
        plans.push_back(each);
      }
    }
    return plans;
  }

  // No new ranks there, and when those that run are over, they leave and are cleaned; what was made
  // is given back.
  void release_unwanted() {
    const auto status = status_now();
    const ClusterPlan plan = plan_now(run_.state.nodes, status);
    const std::vector<NodePlan> plans = going(plan);
    if (plans.empty()) return;
    const bool stopped = run_.options.access.stop.stop_requested();
    if (!status || stopped) {
      for (const NodePlan& each : plans) {
        run_.report.removed.push_back(each.machine.node.str() +
                                      (stopped ? ": stays, for this up was stopped"
                                               : ": stays, for the head does not answer"));
      }
      is_all_gone_ = false;
      return;
    }
    std::set<NodeId> in_cluster;
    for (const KnownNode& each : run_.known) {
      const bool counts = each.head == KnownNode::Head::hears || each.head == KnownNode::Head::lost;
      if (counts) in_cluster.insert(each.machine.node);
    }
    for (const NodePlan& each : plan.nodes) {  // the head's word is of the machine that stays
      if (each.action == NodeAction::keep) in_cluster.erase(each.machine.node);
    }
    std::vector<Machine> leaving;
    std::vector<Machine> others;
    std::vector<NodeGone> nothing_there;
    for (const NodePlan& each : plans) {
      const Machine& machine = each.machine;
      const bool is_ours = machine.cluster.empty() || machine.cluster == run_.state.id;
      // On one that is stopped nobody is at home.
      const bool is_in = is_ours && in_cluster.contains(machine.node);
      if (machine.id.empty() || (is_in && machine.state != MachineState::stopped)) {
        leaving.push_back(machine);
      } else {
        const bool is_stopped = machine.state == MachineState::stopped;
        nothing_there.push_back({others.size(),
                                 is_stopped ? "its machine is stopped" : "not in the cluster", true,
                                 true});
        others.push_back(machine);
      }
    }
    const HangUp hang_up(*run_.provider, run_.options.access.stop);
    left(others, nothing_there);
    take_nodes_away(*run_.provider, run_.state, leaving, *door_, run_.options,
                    [&](const std::vector<NodeGone>& nodes) { left(leaving, nodes); });
    follow_to_end(*run_.provider, released_, {{}, run_.options.access.stop});
    for (const MachineOutcome& outcome : released_) {
      is_all_gone_ = is_all_gone_ && !outcome.error && outcome.machine.state == MachineState::gone;
      run_.report.removed.push_back(
          outcome.machine.node.str() + ": machine " + outcome.machine.id + " is " +
          (outcome.error ? "there still: " + outcome.error->message()
                         : std::string(to_string(outcome.machine.state))));
    }
    std::erase_if(run_.state.nodes, [&](const Machine& machine) {
      return forgotten_.contains({machine.node, machine.id});
    });
    save_cluster(run_.state);
  }

  // With a machine that is given back goes whatever could not be cleaned on it.
  void left(const std::vector<Machine>& machines, const std::vector<NodeGone>& nodes) {
    std::vector<Machine> given_back;
    for (const NodeGone& gone : nodes) {
      const Machine& machine = machines[gone.number];
      run_.report.removed.push_back(machine.node.str() + ": " + gone.text);
      const bool made = !machine.id.empty();
      if (made && gone.left && machine.state != MachineState::gone) given_back.push_back(machine);
      const bool over = gone.complete || (made && gone.left);
      is_all_gone_ = is_all_gone_ && over;
      if (over) forgotten_.emplace(machine.node, machine.id);
    }
    if (given_back.empty()) return;
    for (MachineOutcome& outcome : release_machines(*run_.provider, given_back, {})) {
      released_.push_back(std::move(outcome));
    }
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
    run_.report.complete = ready >= wanted && is_all_gone_;
  }

  UpRun& run_;
  HeadDesk desk_;
  std::size_t at_work_ = 0;  // machines that are not done
  bool is_head_done_ = false;
  int ready_ = 0;                                             // nodes, as the head says
  std::vector<std::size_t> started_;                          // of report.each: to be called ready
  std::vector<std::chrono::steady_clock::time_point> since_;  // each is done
  std::map<NodeId, std::string> stale_;                       // why, or nothing
  std::optional<HeadDoor> door_;
  std::vector<MachineOutcome> released_;
  std::set<std::pair<NodeId, std::string>> forgotten_;  // by node and machine
  bool is_all_gone_ = true;                             // that was to go
  std::optional<HostsWork> work_;                       // ends before the desk does
};

}  // namespace

std::unique_ptr<UpWay> hosts_up(UpRun& run) {
  return std::make_unique<HostsUp>(run);
}

}  // namespace dtrain

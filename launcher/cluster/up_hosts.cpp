#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/cluster/head_desk.hpp"
#include "launcher/cluster/node_down.hpp"
#include "launcher/cluster/node_up.hpp"
#include "launcher/cluster/settings.hpp"
#include "launcher/cluster/up_parts.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"

// `up` of machines that are there: all of them side by side.
namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HostsUp {
 public:
  HostsUp(const ClusterSpec& spec, const UpOptions& options)
      : spec_(spec),
        options_(options),
        folder_(paths::cluster_state(spec.cluster_name)),
        provider_(make_provider(spec, folder_, options.access)),
        before_(load_cluster(spec.cluster_name)) {}

  UpReport run() {
    report_.name = spec_.cluster_name;
    report_.state = folder_;
    refuse_other_shapes();
    bring_up_nodes();
    const std::optional<HeadDesk::Head> head = desk_.head_if_open();
    if (options_.dry_run) return planned(head);
    // Also when it failed: its logs can be read, and what is there can be taken down.
    if (head) save(*head);
    if (!head || report_.each.front().error) return failed();
    join();
    tell_settings();
    let_go();
    decide();
    return std::move(report_);
  }

 private:
  void refuse_other_shapes() const {
    if (!before_ || before_->provider == to_string(spec_.provider.kind)) return;
    throw Error(ErrorCode::conflict,
                "cluster " + spec_.cluster_name + " is up with provider " + before_->provider)
        .with_hint("dtrain down -c " + spec_.cluster_name + " first");
  }

  void bring_up_nodes() {
    const auto binary = AgentBinary::load(options_.agent);
    const std::vector<Machine> machines = provider_->list();
    report_.each.resize(machines.size());
    // Ctrl-C: each machine's work sees it between two steps; what waits for a machine that says
    // nothing is cut off a little later.
    std::jthread cutter([&](const std::stop_token& over) {
      std::mutex mutex;
      std::condition_variable_any changed;
      // Before the lock: a stop that was asked for already calls it at once.
      const std::stop_callback wake(options_.access.stop, [&] {
        const std::lock_guard inside(mutex);
        changed.notify_all();
      });
      std::unique_lock lock(mutex);
      const auto asked = [&] { return options_.access.stop.stop_requested(); };
      changed.wait(lock, over, asked);
      if (over.stop_requested()) return;
      changed.wait_for(lock, over, seconds(3), [] { return false; });
      if (!over.stop_requested()) provider_->hang_up();
    });
    const bool is_spread = machines.size() > kFewHosts && options_.seeds > 0 && !options_.dry_run;
    SpreadLimits limits;
    limits.seeds = options_.seeds;
    std::shared_ptr<Spread> spread;
    std::shared_ptr<Parcels> parcels;
    if (is_spread) {
      spread = std::make_shared<Spread>(limits, options_.access.stop, say_of("agent"));
      parcels = std::make_shared<Parcels>(folder_, limits, options_.access.stop, say_of("files"));
    }
    // The head is the first, and so begun before any that waits for it.
    side_by_side(
        machines.size(), static_cast<std::size_t>(options_.max_parallel), [&](std::size_t i) {
          NodeTask task;
          task.machine = machines[i];
          task.head = i == 0;
          if (before_) task.known = before_->id;
          task.spread = spread;
          task.parcels = parcels;
          report_.each[i] = bring_up_node(spec_, options_, *provider_, binary, desk_, task);
        });
  }

  // What hinders it is the head's machine's trouble: what is known of the others is told all the
  // same.
  void tell_settings() {
    NodeUp& head = report_.each.front();
    if (head.error) return;
    try {
      SettingsApplied settings = apply_settings(door_->socket(), spec_);
      report_.warnings = std::move(settings.warnings);
      if (settings.changed) {
        head.steps.push_back({"settings", "told the head what it may delete"});
      }
    } catch (const Error& error) {
      head.error = error;
    }
  }

  std::function<void(const std::string&, const std::string&)> say_of(const char* what) const {
    return [this, what](const std::string& host, const std::string& words) {
      if (options_.detail) options_.detail(NodeId(host), what + (" " + words));
    };
  }

  UpReport planned(const std::optional<HeadDesk::Head>& head) {
    report_.action = UpAction::plan;
    if (head) report_.id = head->cluster;
    for (const NodeUp& node : report_.each) report_.complete = report_.complete && !node.error;
    if (before_) {
      for (const Machine& machine : before_->nodes) {
        if (!is_wanted(machine.node)) report_.removed.push_back(machine.node.str() + ": would go");
      }
    }
    return std::move(report_);
  }

  UpReport failed() {
    report_.action = UpAction::change;
    report_.complete = false;
    return std::move(report_);
  }

  bool is_wanted(const NodeId& node) const {
    return std::any_of(spec_.provider.hosts.begin(), spec_.provider.hosts.end(),
                       [&](const HostSpec& host) { return host.node == node; });
  }

  bool was_there(const NodeId& node) const {
    return before_ && std::any_of(before_->nodes.begin(), before_->nodes.end(),
                                  [&](const Machine& machine) { return machine.node == node; });
  }

  // What this machine must know to find the cluster again, `down` included: also nodes that failed
  // half way and nodes that are to go.
  void save(const HeadDesk::Head& head) {
    state_.name = spec_.cluster_name;
    state_.id = head.cluster;
    state_.provider = to_string(spec_.provider.kind);
    state_.head_root = head.found.root;
    state_.head_socket = paths::head_socket_of(head.found.root);
    state_.agent = head.agent;
    state_.spec = to_json(spec_);
    state_.source = spec_.source;
    state_.created = before_ && before_->id == head.cluster
                         ? before_->created
                         : rfc3339(std::chrono::system_clock::now());
    state_.prepared = true;
    // A new host that was never reached has nothing of ours, and is not to be looked for.
    for (const NodeUp& node : report_.each) {
      if (!node.error || !node.machine.root.empty() || was_there(node.machine.node)) {
        state_.nodes.push_back(node.machine);
      }
    }
    if (before_ && before_->id == head.cluster) {
      for (const Machine& machine : before_->nodes) {
        if (!is_wanted(machine.node)) state_.nodes.push_back(machine);
      }
    }
    if (!before_ || to_json(*before_) != to_json(state_)) save_cluster(state_);
    report_.id = state_.id;
  }

  // Until the head calls every node ready that came so far.
  void join() {
    std::vector<Machine> started;
    for (const NodeUp& node : report_.each) {
      if (!node.error) started.push_back(node.machine);
    }
    door_.emplace(HeadDoor::open(state_, *provider_));
    const auto begin = std::chrono::steady_clock::now();
    auto pause = milliseconds(5);
    std::set<NodeId> told;
    while (true) {
      const auto missing = nodes_not_ready(door_->socket(), state_.name, started);
      const auto waited =
          std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
      const bool over = waited > options_.ready_limit || options_.access.stop.stop_requested();
      for (const Machine& machine : started) {
        std::string why = "the head does not answer";
        bool is_missing = !missing;
        if (missing) {
          for (const auto& [node, said] : *missing) {
            if (node != machine.node) continue;
            is_missing = true;
            why = said;
          }
        }
        if (told.contains(machine.node)) continue;
        if (!is_missing) {
          told.insert(machine.node);
          tell(machine.node, NodeProgress::State::ready, "");
        } else if (over) {
          told.insert(machine.node);
          lost(machine.node, why, waited);
        } else {
          tell(machine.node, NodeProgress::State::at_work, why);
        }
      }
      if (told.size() == started.size()) return;
      // The head's own wait would be better; it has no message for it.
      std::this_thread::sleep_for(pause);
      pause = std::min(milliseconds(100), pause + pause / 2);
    }
  }

  void tell(const NodeId& node, NodeProgress::State state, const std::string& text) const {
    options_.progress({node, state, "join", text, milliseconds(0)});
  }

  // It was started and did not join: most often it cannot reach the head's port.
  void lost(const NodeId& node, const std::string& why, milliseconds waited) {
    for (NodeUp& each : report_.each) {
      if (each.machine.node != node) continue;
      const auto head = desk_.head_if_open();
      Error error(ErrorCode::timeout,
                  "it did not join the head within " + human_duration(waited) + " (" + why + ")");
      error.while_doing("join on " + node.str());
      if (head && !head->addresses.empty()) {
        error.with_hint(node.str() + " must reach " + join_addresses(*head) +
                        " by TCP; set provider.head_address, or open the port");
      }
      try {
        const auto transport = provider_->reach(each.machine);
        AgentSession session = AgentSession::open(*transport, AgentBinary::load(options_.agent));
        session.open_node({state_.id, node, spec_.provider.root, false, false, {}});
        for (const wire::LogTail& log : session.read_logs({false, 10}).logs) {
          each.tail.push_back(log.path + ":");
          for (const std::string& line : log.lines) each.tail.push_back("  " + line);
        }
      } catch (const Error&) {  // its logs are only an addition
      }
      each.error = error;
    }
    tell(node, NodeProgress::State::failed, why);
  }

  static std::string join_addresses(const HeadDesk::Head& head) {
    return dtrain::join(head.addresses, " or ") + ", port " + std::to_string(head.found.port);
  }

  // Hosts that are in the cluster and no longer in the YAML: no new ranks, and when those that run
  // are over, they leave and are cleaned.
  void let_go() {
    std::vector<Machine> going;
    for (const Machine& machine : state_.nodes) {
      if (!is_wanted(machine.node)) going.push_back(machine);
    }
    if (going.empty()) return;
    for (const Machine& machine : going) {
      const NodeGone gone = take_node_away(*provider_, state_, machine, *door_, options_);
      report_.removed.push_back(machine.node.str() + ": " + gone.text);
      if (!gone.complete) continue;
      std::erase_if(state_.nodes, [&](const Machine& each) { return each.node == machine.node; });
    }
    save_cluster(state_);
  }

  void decide() {
    std::size_t ready = 0;
    bool changed = !report_.removed.empty() || !before_;
    for (const NodeUp& node : report_.each) {
      changed = changed || !node.steps.empty() || node.error;
      if (node.error) continue;
      ++ready;
      report_.nodes.push_back(node.machine);
    }
    report_.action = changed ? UpAction::change : UpAction::nothing;
    const std::size_t wanted =
        options_.min_nodes > 0
            ? std::min(static_cast<std::size_t>(options_.min_nodes), report_.each.size())
            : report_.each.size();
    report_.complete = ready >= wanted;
  }

  const ClusterSpec& spec_;
  const UpOptions& options_;
  fs::path folder_;
  std::unique_ptr<Provider> provider_;
  std::optional<ClusterState> before_;
  HeadDesk desk_;
  ClusterState state_;
  std::optional<HeadDoor> door_;
  UpReport report_;
};

}  // namespace

UpReport up_hosts(const ClusterSpec& spec, const UpOptions& options) {
  return HostsUp(spec, options).run();
}

}  // namespace dtrain

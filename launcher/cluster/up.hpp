#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/cluster/plan.hpp"
#include "launcher/cluster/progress.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/remote/spread.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain::wire {
class ApiClient;
}

namespace dtrain {

// What `up` found before it did anything; provider local.
struct UpObserved {
  std::optional<ClusterState> state;
  bool watch_lives = false;
  bool all_ready = false;  // the head answers and every promised node is ready
  std::string replace;     // why agents that run give way to new ones; empty: they do not
};

enum class UpAction : std::uint8_t {
  nothing,      // it is up as asked
  wait,         // its processes run: only wait until every node is ready
  start_watch,  // it is prepared, its watch is not there
  replace,      // its agents give way to new ones; ranks go on
  build,        // from nothing (what an interrupted `up` left is cleared first)
  change,       // some of its nodes lacked something
  plan,         // dry run: what would be done is in the report
  refuse,       // it is up in another shape
  decline,      // options.may_make said no
};
struct UpPlan {
  UpAction action = UpAction::nothing;
  std::string reason;
};

// Pure. `wanted` and the spec in the state are compared by what a running cluster cannot change.
UpPlan plan_up(const ClusterSpec& wanted, const UpObserved& observed);

struct UpOptions {
  fs::path agent;
  std::chrono::milliseconds ready_limit{30000};
  std::function<void(const std::string&)> say = [](const std::string&) {};  // steps, for people
  std::function<void(const std::string&)> evidence = [](const std::string&) {};  // lines of logs

  // Machines that are there already; provider local knows none of these.
  ProgressSink progress = [](const NodeProgress&) {};
  // Lines that setup commands print; from several threads at once.
  std::function<void(const NodeId&, const std::string&)> setup_line;
  // More of a node than most want to know, a line each; from several threads at once.
  std::function<void(const NodeId&, const std::string&)> detail;
  Access access;
  // Is given the head's API before the last of it, but not in a dry run, nor when all was stopped
  // before; it ends on `stop`. What it throws is in the report; where the head asks for machines it
  // ends this `up` before that.
  std::function<void(const wire::ApiClient& head, const std::stop_token& stop)> with_head;
  // Asked before machines are made that cost; false leaves all as it is. Empty: that is an error.
  std::function<bool(const ClusterPlan&)> may_make;
  std::shared_ptr<Provider> provider;  // null: the spec's
  bool dry_run = false;
  bool replace = false;     // machines of another launch configuration give way
  bool force = false;       // everything again, whatever is there
  bool no_setup = false;    // no setup commands
  bool no_restart = false;  // agents that run stay as they are
  bool downgrade = false;   // agents that run may be replaced by older ones
  bool persist = false;     // a service of systemd's user manager starts them after a reboot
  int max_parallel = kMaxParallel;
  int seeds = SpreadLimits().seeds;  // of many hosts, those that get agent and files from here
  int min_nodes = 0;                 // go on with so many nodes; 0: all of them
  std::chrono::milliseconds drain_limit{std::chrono::hours(24)};  // for ranks on a node that goes
};

// What an `up` did, or would do, on one node.
struct NodeUp {
  Machine machine;
  struct Step {
    std::string step;  // agent, identity, files, setup, start, …
    std::string text;  // "3 files, 12 KiB", "from command 2 of 3 on"
  };
  std::vector<Step> steps;            // what was not as it should be; empty: nothing was done
  std::vector<std::string> warnings;  // what a person should know of this node
  std::optional<Error> error;         // the node is not ready
  std::vector<std::string> tail;      // of a command that failed: its last lines
};

// Machines of one type that the head asks for.
struct AskedType {
  std::string type;
  int wanted = 0;
  int most = 0;  // there may be when jobs need them; not more than wanted: only those
  std::vector<NodeId> ready;
  std::optional<Error> error;  // why there are not more
};

struct UpReport {
  UpAction action = UpAction::nothing;
  std::string name;
  ClusterId id;
  ClusterPlan plan;            // of machines
  std::vector<Machine> nodes;  // that are ready
  fs::path state;
  std::vector<NodeUp> each;           // of every promised node; empty for provider local
  std::vector<AskedType> asked;       // where the head asks for machines
  std::vector<std::string> removed;   // nodes that left, each with what became of it
  std::vector<std::string> warnings;  // what a person should know of the head's machine
  std::optional<Error> with_head;     // what the option of that name threw
  // Where the YAML bounds it: what the cluster will cost, US dollars an hour.
  struct Cost {
    double per_hour = 0;
    double most = 0;
    std::string refused;  // why that may not be made; empty: it may
  };
  std::optional<Cost> cost;
  bool complete = true;  // everything that was promised is ready, or min_nodes of it
};

// Throws Error(conflict) when the agents that are there are of a newer version than those that
// would take their place: what they have written may be more than older ones understand.
void refuse_downgrade(const std::string& running, const std::string& wanted);

// Brings the cluster up, or finds that it is. Takes the cluster's lock. Throws Error; what was
// built until then is cleared away again, unless processes were started: those stay, to be looked
// at, and the next `up` or `down` goes on from there. With many machines, what fails on one of them
// is in the report.
UpReport up(const ClusterSpec& spec, const UpOptions& options);

}  // namespace dtrain

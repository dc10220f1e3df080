#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/engine/engine.hpp"
#include "agent/head/machines/account.hpp"
#include "agent/head/machines/failures.hpp"
#include "agent/head/machines/source.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/provider/machine_decision.hpp"

namespace dtrain::head {

// Keeps as many machines of each type as `up` wanted, and more while jobs need them: asks for what
// is missing, gives each its credential, begins anew what has ended, gives back what nobody needs.
// It looks while something is on its way or goes, ever less often, and when a node is heard to come
// or to go, or jobs need others; while all is there it asks nobody. On the engine's thread; one
// thread of its own waits for the source, another for the disk.
class MachineKeeper {
 public:
  // The head's other parts.
  struct Hooks {
    std::function<void(std::function<void()>)> post;  // onto the engine's thread, from any
    // At most one is pending: a new one replaces it.
    std::function<void(std::chrono::milliseconds, std::function<void()>)> timer;
    std::function<std::unique_ptr<MachineSource>(const wire::WantedMachines&)> source;
    std::function<bool(const NodeId&)> is_taken;  // the name is another's, or was
    // A credential that does not count yet: what the machine runs, or why there is none.
    using Issued = std::function<void(const std::string& script, const std::optional<Error>&)>;
    std::function<void(const NodeId&, const std::string& type,
                       const std::vector<std::string>& addresses, Issued)>
        issue;
    std::function<void(const NodeId&)> begin;  // it counts: its machine runs
    // All that have such a credential, used or not, and were not removed.
    std::function<std::vector<NodeId>()> made;
    std::function<Engine::Presence(const NodeId&)> node;
    // Nodes that are in use, and by what; empty: by ranks.
    std::function<std::map<NodeId, std::string>()> busy;
    // It is here, and has said that it leaves: another is asked for in its place.
    std::function<bool(const NodeId&)> leaves;
    std::function<bool(const NodeId&)> is_drained;  // or is to be
    // May throw Error, as the next.
    std::function<void(const NodeId&, bool undo)> drain;
    std::function<void(const NodeId&, const std::string& why)> remove;
    // The provider's word on the end of its machine, and whether it has taken it back.
    std::function<void(const NodeId&, const std::string& why, bool taken_back)> explain;
    // Which machines there may be and are to come; what jobs need of them.
    std::function<Growth(const MachinesToCome&)> expect_machines;
    std::function<std::optional<NodeCapacity>(const NodeId&)> capacity;
    std::function<std::string(const NodeId&)> broken;  // why it takes no ranks; empty: it does
    std::function<bool(const NodeId&)> is_prepared;    // or was, when it was heard of last
    std::function<void(const wire::WantedMachines&)> wants;  // from now on; durable
  };
  // `file`: where what is wanted is kept; `costs`: what that costs. What cannot be read, or asked
  // for, is the view's "trouble"; nothing is asked for then, until something is wanted anew.
  MachineKeeper(ClusterId cluster, const fs::path& file, const fs::path& costs, const Clock& clock,
                Hooks hooks);
  ~MachineKeeper();

  // From now on this is wanted; `done` hears it, or what failed, once it is durable.
  void want(const nlohmann::json& body, std::function<void(nlohmann::json)> done);
  // From now on these are the prices, and the bound; `done` hears cost_view(), or what failed, once
  // it is durable.
  void costs(const nlohmann::json& body, std::function<void(nlohmann::json)> done);
  // As MachineAccount's, {"error"} where what was kept cannot be read, null where nobody has told.
  nlohmann::json cost_view() const;
  // What was wanted last; without a provider: nothing.
  const wire::WantedMachines& wanted() const { return wanted_; }
  // {"wanted": …|null, "trouble": error|null, "types": [{"type", "wanted", "error"}],
  //  "machines": [{"node", "type", "id", "state", "reason", "stays", "zone", "launch"}]}
  nlohmann::json view() const;
  // It has come or gone, or was given up.
  void changed(const NodeId& node);
  // As after that; also when a machine shows a credential that does not count yet.
  void look();
  // Jobs need others than before.
  void needs();
  // All machines of the cluster go, whoever has made them, and the head's last: stopped, or given
  // back too. What cannot be is tried again, until stay(), or until an `up` wants some.
  void go_down(const std::string& why, bool terminate);
  void stay();
  // Nothing is asked for any more.
  void end();
  // Nothing is on its way to or from its threads.
  bool rests() const { return running_ == 0; }

  static constexpr std::chrono::milliseconds kFirstLook{1000};
  static constexpr std::chrono::milliseconds kLastLook{15000};
  // One that could not be started, for want of room say, is tried again after so long.
  static constexpr std::chrono::minutes kStartPause{10};
  // For one that runs to come; and of silence, until what it was had with is given back.
  static constexpr std::chrono::minutes kJoinLimit{10};
  static constexpr std::chrono::minutes kLostLimit{10};
  // For one that an `up` has made to become a node; after that another is asked for in its place.
  static constexpr std::chrono::minutes kPrepareLimit{60};
  // Requests of jobs that are made at a time, so that what comes meanwhile is let in.
  static constexpr int kMostGangs = 16;
  // After the last look, however much happens; what waits to be let in waits so long.
  static constexpr std::chrono::milliseconds kBreath{200};

 private:
  struct Asking {
    std::shared_ptr<MachineSource> source;  // that was asked which there are
    std::vector<Request> requests;
    std::vector<Machine> release;
    std::vector<Machine> stop;
    std::vector<Machine> start;
    std::map<NodeId, std::string> scripts;  // of those
    std::size_t open = 0;                   // credentials that have not come yet
  };
  using Groups = std::map<std::string, std::vector<Machine>>;  // had together, by group_of()

  // On that worker; `then` here, unless all has ended.
  void run(Worker& worker, std::function<void()> work,
           std::function<void(const std::optional<Error>&)> then);
  // The same, where the source is asked: one thing at a time.
  void ask(std::shared_ptr<MachineSource> source, std::function<void()> work,
           std::function<void(const std::optional<Error>&)> then);
  void save(const wire::WantedMachines& wanted,
            std::function<void(const std::optional<Error>&)> then);
  void save_costs(std::function<void(const std::optional<Error>&)> then);
  void arm(std::chrono::milliseconds delay);
  void seen(const std::vector<Machine>& list);
  void see_told();
  void see(std::vector<Machine> machines, bool all);
  void note_asked(const Machine& machine);
  void note_taken_back(const std::vector<Machine>& list);
  void see_ups();
  bool is_awaited(const NodeId& node) const;
  void bury(const NodeId& node, const Machine* machine);
  void ended(const NodeId& node, const std::string& type, const std::string& why);
  void fail(const std::string& type, const Error& why, int count = 1);
  void remove(const NodeId& node, const std::string& why);
  void settle();
  std::map<std::string, int> missing() const;
  bool is_here(const NodeId& node) const;
  const wire::WantedMachines::Type* type_of(const std::string& name) const;

  // In needs.cpp.
  CostLimit cost_limit() const;
  MachinesToCome to_come() const;
  Growth tell();
  void measure();
  std::set<NodeId> in_use(const Growth& growth);

  // In asking.cpp.
  void decide();
  bool is_useful(const Machine& machine, bool may_come);
  void undo_drains(const std::vector<MachineDecision::Release>& release);
  void give_back(const std::vector<MachineDecision::Release>& release, const Groups& groups,
                 Asking& asking);
  bool may_go(const std::vector<Machine>& machines, const std::map<NodeId, std::string>& busy);
  std::string why_it_stays(const NodeId& node, const std::map<NodeId, std::string>& busy) const;
  NodeId free_name(const std::string& type);
  void ask_for(const std::string& type, int count, const std::shared_ptr<Asking>& asking);
  void act(const std::shared_ptr<Asking>& asking);
  void forget(const NodeId& node);

  std::string what_starts(const Machine& machine) const;

  // In going.cpp.
  void leave(const std::vector<Machine>& list);

  // In stopped.cpp.
  void halted(const NodeId& node, const Machine& machine);
  void see_stopped(const Machine& machine);
  int start_stopped(const std::string& type, int count, const std::shared_ptr<Asking>& asking);
  std::vector<MachineDecision::Release> surplus(const std::vector<Machine>& there,
                                                const MachineDecision& decision,
                                                const Asking& asking) const;
  void drop_unissued(Asking& asking, bool over);
  void turned(const MachineOutcome& outcome, const char* what);

  struct Going {
    std::string why;
    bool terminate = false;
  };

  const ClusterId cluster_;
  const fs::path file_;
  const fs::path costs_file_;
  const Clock& clock_;
  Hooks hooks_;
  wire::WantedMachines wanted_;
  std::shared_ptr<const wire::WantedMachines> next_;  // that is not durable yet
  std::shared_ptr<MachineSource> source_;
  std::shared_ptr<MachineSource> busy_source_;  // that is asked now: this one, or the one before
  std::map<NodeId, Machine> machines_;          // as last seen: of this cluster, and not gone
  MachineFailures failures_;
  MachineAccount account_;
  std::optional<Error> lost_account_;  // why it begins anew
  std::map<std::string, std::string>
      dear_;                              // by type: why those that are missing are not asked for
  std::map<std::string, int> next_name_;  // by type
  // Of nodes: when each first came, its machine was first seen to run, itself lost.
  std::map<NodeId, Monotonic> came_;
  std::map<NodeId, Monotonic> runs_;
  std::map<NodeId, Monotonic> lost_;
  std::set<std::string> taken_back_;      // of machines: of these the queue has heard
  std::map<NodeId, WallTime> asked_;      // of machines that are to become nodes, since when
  std::map<NodeId, std::string> kept_;    // why the provider does not take them back
  std::vector<Machine> stopped_;          // of those that it has asked for, as last decided
  std::map<NodeId, Monotonic> no_start_;  // could not be started then
  std::map<NodeId, Monotonic> ups_;       // made by an `up`, run, and are not here, since then
  std::set<NodeId> hopeless_;             // as last decided: their nodes do not come
  std::set<NodeId> broken_;               // are here, and told
  std::map<NodeId, Monotonic> idle_;      // since when nobody needs one that may go then
  std::optional<Monotonic::duration> idle_left_;  // of the first that goes by that
  // What one has at least, by type and launch configuration, of those seen since it was wanted.
  std::map<std::pair<std::string, std::string>, NodeCapacity> measured_;
  std::map<std::string, int> gangs_;  // by type: jobs need so many that were not had yet
  std::set<NodeId> drained_;          // by this; kept with what is wanted
  std::optional<Error> trouble_;      // the source does not answer, or there is none
  std::chrono::milliseconds pause_ = kFirstLook;
  int running_ = 0;       // on the workers
  bool at_work_ = false;  // from a look to what follows from it
  bool again_ = false;
  bool others_ = false;             // meanwhile jobs need others
  std::optional<Monotonic> armed_;  // the timer, for then
  bool tells_ = false;              // what is to come, so that the answer is no news
  bool moves_ = false;              // as last decided: something is on its way, or goes
  bool ended_ = false;
  std::optional<Going> going_;  // down
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  // They end first. What is to be durable does not wait for the source, which may take minutes.
  std::optional<Worker> asks_{std::in_place};
  std::optional<Worker> writes_{std::in_place};
};

}  // namespace dtrain::head

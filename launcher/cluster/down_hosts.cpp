#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/cluster/counted.hpp"
#include "launcher/cluster/door.hpp"
#include "launcher/cluster/down_way.hpp"
#include "launcher/cluster/hang_up.hpp"
#include "launcher/cluster/machines.hpp"
#include "launcher/cluster/node_down.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/machines.hpp"

// `down` of machines that are there: all of them side by side, each looked at afterwards.
namespace dtrain {
namespace {

void add_rows(const NodeDown& node, DownReport& report) {
  DownRow row;
  row.node = node.node.str();
  if (node.error) {
    row.what = "not reached";
    row.had = "?";
    row.now = "?";
    row.note = node.error->message() + "; what it had stays on it";
    row.gone = false;
    report.rows.push_back(row);
    return;
  }
  report.rows.push_back({row.node, "processes", std::to_string(node.processes),
                         std::to_string(node.processes_now), node.note, node.processes_now == 0});
  row.what = "files";
  row.had = counted(static_cast<std::size_t>(std::max<std::int64_t>(node.files, 0)), "file") +
            ", " + human_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(node.bytes, 0)));
  row.now = node.kept.empty() ? std::to_string(node.files_now) : "kept";
  row.note = node.kept;
  row.gone = node.files_now == 0 || !node.kept.empty();
  report.rows.push_back(row);
  if (!node.changed.empty()) {
    row.what = "synced files";
    row.had = std::to_string(node.changed.size()) + " changed since";
    row.now = "kept";
    row.gone = true;
    row.note = node.changed.front() + (node.changed.size() > 1 ? ", …" : "");
    report.rows.push_back(row);
  }
  for (const std::string& left : node.left) {
    report.rows.push_back({row.node, "left", "", "there", left, false});
  }
}

// So often more machines than before are given back while their head stays.
constexpr int kWorkerRounds = 3;

class HostsDown final : public DownWay {
 public:
  HostsDown(ClusterState state, const DownOptions& options)
      : state_(std::move(state)),
        options_(options),
        provider_(options.provider ? options.provider : provider_of(state_, options.access)),
        hang_up_(*provider_, options.access.stop),
        machines_(of_cluster()) {}

  void survey(DownSurvey& survey) override {
    survey.provider = provider_;
    if (machines_.empty()) return;
    reach_all();
    try {
      survey_jobs(HeadDoor::open(state_, *provider_).socket(), state_.name, survey);
    } catch (const Error&) {  // the survey says that the head does not answer
    }
    try {
      const Machine& head = machines_.front();
      const std::unique_ptr<Transport> transport = provider_->reach(head);
      AgentSession session = AgentSession::open(*transport, AgentBinary::load(options_.agent));
      session.open_node({state_.id, head.node, base_of(state_), false, true, {}});
      const wire::SurveyReport found = session.survey({true});
      survey.checkpoints = found.checkpoints;
      survey.checkpoint_bytes = static_cast<std::uint64_t>(found.checkpoint_bytes);
      survey.checkpoint_jobs = found.checkpoint_jobs;
      survey.checkpoints_unknown = found.checkpoints_unknown;
    } catch (const Error& error) {
      survey.checkpoints_unknown = error.what();
    }
  }

  std::string end_in_order() override {
    const ProviderEntry* entry = provider_named(state_.provider);
    const bool made = (entry != nullptr && entry->traits.head_asks) ||
                      std::any_of(machines_.begin(), machines_.end(),
                                  [](const Machine& machine) { return !machine.id.empty(); });
    if (options_.keep_files && made) {
      throw Error(ErrorCode::usage, "--keep-files would keep them on machines that are given back")
          .with_hint("dtrain pull brings checkpoints and logs to here");
    }
    if (machines_.empty()) return "";  // a `down` before has left less than that
    if (machines_.front().state == MachineState::stopped) return "";  // nobody is there to ask
    reach_all();
    if (stopped()) return "stopped";
    options_.say("stopping jobs and nodes");
    std::string trouble;
    try {
      const HeadDoor door = HeadDoor::open(state_, *provider_);
      ask_for_strangers(door.socket());
      if (options_.workers_only) {
        trouble = remove_workers(wire::ApiClient(door.socket(), state_.name));
      } else {
        const nlohmann::json ended = shut_down(door.socket(), state_.name, options_.stop_limit);
        for (const nlohmann::json& node : wire::member(ended, "nodes")) {
          const auto found = joined_.find(wire::get_string(node, "node"));
          if (found != joined_.end()) found->second = wire::get_string(node, "state") == "gone";
        }
      }
    } catch (const Error& error) {
      trouble = error.what();
    }
    if (!trouble.empty() && !stopped()) {
      options_.say("not in order, so by force: " + trouble);
      if (!head_answered_) {
        options_.say("machines that joined by themselves, if any have, keep what they had");
      }
    }
    return trouble;
  }

  bool clear(const std::string&, DownReport& report) override {
    const auto binary = AgentBinary::load(options_.agent);
    const std::size_t first = options_.workers_only ? first_worker() : 0;
    const std::size_t reached = machines_.size();
    std::vector<NodeDown> nodes(reached);
    side_by_side(nodes.size() - first, static_cast<std::size_t>(options_.max_parallel),
                 [&](std::size_t number) {
                   const std::size_t i = first + number;
                   nodes[i].node = machines_[i].node;
                   if (stopped()) nodes[i].error = Error(ErrorCode::failed, "stopped");
                   const bool has_agent = machines_[i].state == MachineState::running;
                   if (nodes[i].error || !has_agent) return;
                   NodeDownTask task;
                   task.machine = machines_[i];
                   task.cluster = state_.id;
                   task.base = base_of(state_);
                   task.head = machines_[i].head;
                   task.keep_files = options_.keep_files;
                   nodes[i] = take_node_down(*provider_, binary, task, options_.progress);
                 });
    bool is_known = true;
    std::map<Key, MachineOutcome> given;
    // Again as long as there are others: a head that could not be told asks for more until it is
    // gone, and a list may not have had all that an `up` made.
    bool are_there_more = true;
    int rounds = 0;
    for (std::size_t begin = first; are_there_more && is_known; begin = machines_.size()) {
      // A head that stays, and has not been told, asks for as long as jobs wait.
      if (options_.workers_only && ++rounds > kWorkerRounds) {
        report.rows.push_back(
            {"", "machines", "?", "?", "the head asks for more all the while", false});
        break;
      }
      try {
        add_others();
      } catch (const Error& error) {
        is_known = false;
        report.rows.push_back({"", "machines", "?", "?", error.what(), false});
      }
      are_there_more = machines_.size() > begin;
      given.merge(give_back_made(begin));
    }
    nodes.resize(machines_.size());
    for (std::size_t i = reached; i < nodes.size(); ++i) {
      nodes[i].error = Error(ErrorCode::not_found, "it is reached through the head");
    }
    ClusterState left = state_;
    left.nodes.clear();
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      if (i < first) {
        left.nodes.push_back(machines_[i]);
        continue;
      }
      const auto made = given.find(key_of(machines_[i]));
      bool complete = nodes[i].complete();
      if (made == given.end()) {
        add_rows(nodes[i], report);
      } else {
        // With the machine goes whatever could not be looked at on it.
        if (!nodes[i].error) add_rows(nodes[i], report);
        complete = add_machine(machines_[i], made->second, report);
      }
      if (!complete) left.nodes.push_back(machines_[i]);
      if (i == 0 && !nodes[i].kept.empty()) report.kept = nodes[i].kept;
    }
    for (const std::string& node : strangers_) {
      report.rows.push_back({node, "not reached", "?", "?",
                             "how to reach it is not known here; what it had stays on it", false});
    }
    for (const auto& [node, told] : joined_) {
      const bool made =
          std::any_of(machines_.begin(), machines_.end(),
                      [&id = node](const Machine& machine) { return machine.node.str() == id; });
      if (made) continue;  // its machine's row says it
      const auto asked = asked_for_.find(node);
      if (!told && is_known && asked != asked_for_.end()) {
        report.rows.push_back({node, "machine", asked->second.state, "gone", asked->second.id});
        continue;
      }
      report.rows.push_back(
          {node, "joined", "agent", told ? "told" : "?",
           told ? "it ends and removes what it has"
                : "it was not heard from; what it had stays on it, until dtrain-agent leave there",
           told});
    }
    if (!is_known && left.nodes.empty()) left.nodes = state_.nodes;
    if (left.nodes.empty()) {
      if (clear_up(report)) {
        remove_folder(paths::cluster_state(state_.name));
        return true;
      }
    } else if (!machines_.empty() && left.nodes.front().node != machines_.front().node) {
      // The first is the head's, also when only others are left: to take it down again harms
      // nothing.
      left.nodes.insert(left.nodes.begin(), machines_.front());
    }
    save_cluster(left);  // what is left can be taken down later
    return false;
  }

 private:
  using Key = std::pair<NodeId, std::string>;
  static Key key_of(const Machine& machine) { return {machine.node, machine.id}; }

  // Those that the provider has, and those of the notes that it does not name: of hosts, and what
  // was made, whose list may be older than what is there. The head first.
  std::vector<Machine> of_cluster() const {
    std::vector<Machine> machines;
    std::map<std::pair<NodeId, std::string>, const Machine*> noted;
    for (const Machine& machine : state_.nodes) noted[{machine.node, machine.id}] = &machine;
    for (Machine& machine : provider_->list()) {
      const auto note = noted.extract({machine.node, machine.id});
      if (machine.state == MachineState::gone || machine.joins) continue;
      if (note) {  // what only the node has told
        machine.root = note.mapped()->root;
        machine.address = note.mapped()->address;
      }
      machines.push_back(std::move(machine));
    }
    for (const Machine& machine : state_.nodes) {
      if (noted.contains({machine.node, machine.id})) machines.push_back(machine);
    }
    std::stable_partition(machines.begin(), machines.end(),
                          [](const Machine& machine) { return machine.head; });
    return machines;
  }

  // Those that the head has asked for, and what is listed now, and are not among the machines yet.
  // Nobody logs in to them.
  void add_others() {
    std::set<Key> known;
    for (const Machine& machine : machines_) known.insert(key_of(machine));
    std::vector<Machine> others = provider_->asked_for();
    for (Machine& machine : provider_->list()) {
      const bool stays = machine.head && options_.workers_only;
      if (!machine.id.empty() && !machine.joins && !stays) others.push_back(std::move(machine));
    }
    for (Machine& machine : others) {
      const bool is_new = known.insert(key_of(machine)).second;
      if (is_new && machine.state != MachineState::gone) machines_.push_back(std::move(machine));
    }
  }

  std::size_t first_worker() const { return !machines_.empty() && machines_.front().head ? 1 : 0; }

  // What was made, by its id: every machine of the cluster's name, whichever laptop asked for it.
  std::map<Key, MachineOutcome> give_back_made(std::size_t first) {
    std::vector<Machine> made;
    for (std::size_t i = first; i < machines_.size(); ++i) {
      // Also what was asked for, and nobody knows what became of it.
      const bool asked = machines_[i].state == MachineState::pending;
      if (asked || !machines_[i].id.empty()) made.push_back(machines_[i]);
    }
    std::map<Key, MachineOutcome> given;
    if (made.empty()) return given;
    std::vector<MachineOutcome> outcomes;
    if (stopped()) {
      for (const Machine& machine : made) {
        outcomes.push_back({machine, Error(ErrorCode::failed, "stopped before it was given back")});
      }
    } else {
      options_.say("giving machines back");
      const OutcomeSink tell = [&](const MachineOutcome& outcome) {
        const Machine& machine = outcome.machine;
        if (outcome.error || !machine.reason.starts_with(kTakesLong)) return;
        options_.say(machine.node.str() + " (" + machine.id + ") " + machine.reason);
      };
      outcomes = give_back(*provider_, made, {tell, options_.access.stop});
    }
    for (std::size_t i = 0; i < made.size(); ++i) {
      given.insert_or_assign(key_of(made[i]), std::move(outcomes[i]));
    }
    return given;
  }

  static bool add_machine(const Machine& machine, const MachineOutcome& given, DownReport& report) {
    const bool gone = !given.error && given.machine.state == MachineState::gone;
    std::string note = machine.id;
    if (given.error) note += ": " + given.error->message();
    if (!given.error && !gone) note += ": it is being given back";
    report.rows.push_back({machine.node.str(), "machine", to_string(machine.state),
                           to_string(given.machine.state), std::move(note), gone});
    return gone;
  }

  // True: nothing is left that was to go.
  bool clear_up(DownReport& report) {
    bool all = true;
    try {
      for (const Belonging& each : provider_->clear_up(state_.id)) {
        const bool over = each.gone || each.kept;
        report.rows.push_back({"", each.what, each.id,
                               each.gone   ? "gone"
                               : each.kept ? "kept"
                                           : "there",
                               each.note, over});
        all = all && over;
      }
    } catch (const Error& error) {
      report.rows.push_back({"", "left", "", "there", error.what(), false});
      all = false;
    }
    return all;
  }

  bool stopped() const { return options_.access.stop.stop_requested(); }

  // All of them, so that those which cannot be reached take their time together; what became of it
  // is the provider's to remember.
  void reach_all() {
    side_by_side(machines_.size(), static_cast<std::size_t>(options_.max_parallel),
                 [&](std::size_t i) {
                   if (machines_[i].state == MachineState::stopped) return;
                   try {
                     provider_->reach(machines_[i]);
                   } catch (const std::exception&) {  // told by whoever needs it
                   }
                 });
  }

  // Nodes of the head that another machine's YAML names, and this one's does not; and those that
  // joined by themselves, which the head tells to clean up.
  void ask_for_strangers(const fs::path& socket) {
    const auto status = ask_head(socket, state_.name);
    if (!status) return;
    head_answered_ = true;
    const nlohmann::json machines = status->value("machines", nlohmann::json::object());
    const bool head_asks = machines.contains("wanted") && !machines["wanted"].is_null();
    if (head_asks) ask_for_no_more(socket, machines["wanted"]);
    for (const nlohmann::json& machine : machines.value("machines", nlohmann::json::array())) {
      asked_for_[wire::get_string(machine, "node")] = {wire::get_string(machine, "id"),
                                                       wire::get_string(machine, "state")};
    }
    std::set<std::string> known;
    for (const Machine& machine : machines_) known.insert(machine.node.str());
    for (const nlohmann::json& node : wire::member(*status, "nodes")) {
      const std::string name = wire::get_string(node, "node");
      const std::string now = wire::get_string(node, "state");
      if (known.contains(name) || now == "gone") continue;
      if (wire::get_bool(node, "joined", false)) {
        joined_.emplace(name, false);
      } else {
        strangers_.push_back(name);
      }
    }
  }

  // A head that stays knows all else that it was told: its provider, when it goes down by itself,
  // how its successor is asked for.
  void ask_for_no_more(const fs::path& socket, nlohmann::json wanted) {
    if (options_.workers_only) {
      wanted["types"] = nlohmann::json::array();
    } else {
      wanted = wire::to_json(wire::WantedMachines{});
    }
    try {
      wire::ApiClient(socket, state_.name).post("/v1/machines", wanted, options_.stop_limit);
    } catch (const Error& error) {
      options_.say("the head asks for machines still: " + error.message());
    }
  }

  // The jobs on them end: whoever asked for this has been told.
  std::string remove_workers(const wire::ApiClient& client) {
    std::vector<std::string> workers = strangers_;
    for (const auto& [node, told] : joined_) workers.push_back(node);
    for (std::size_t i = first_worker(); i < machines_.size(); ++i) {
      workers.push_back(machines_[i].node.str());
    }
    // Side by side: one that does not hang up is waited for.
    std::mutex mutex;
    std::string trouble;
    side_by_side(
        workers.size(), static_cast<std::size_t>(options_.max_parallel), [&](std::size_t i) {
          try {
            const wire::ApiClient own(client.socket(), state_.name);
            const nlohmann::json answer =
                own.post("/v1/nodes/" + wire::percent_encode(workers[i]) + "/remove",
                         {{"force", true}}, options_.stop_limit);
            const std::lock_guard lock(mutex);
            const auto found = joined_.find(workers[i]);
            if (found != joined_.end()) found->second = wire::get_bool(answer, "told", false);
          } catch (const std::exception& thrown) {  // the others are asked all the same
            const Error error = as_defect(thrown);
            // The head gives it back by itself, as it is to keep none, or has.
            if (error.code() == ErrorCode::conflict || error.code() == ErrorCode::not_found) {
              return;
            }
            const std::lock_guard lock(mutex);
            trouble = error.what();
          }
        });
    return trouble;
  }

  ClusterState state_;
  const DownOptions& options_;
  std::shared_ptr<Provider> provider_;
  const HangUp hang_up_;
  std::vector<Machine> machines_;
  bool head_answered_ = false;
  std::vector<std::string> strangers_;
  // That joined by themselves, and whether they have heard that they leave.
  std::map<std::string, bool> joined_;
  // Of these, the machines that the head had asked for, as it last saw them.
  struct AskedFor {
    std::string id;
    std::string state;
  };
  std::map<std::string, AskedFor> asked_for_;
};

}  // namespace

std::unique_ptr<DownWay> hosts_down(const ClusterState& state, const DownOptions& options) {
  return std::make_unique<HostsDown>(state, options);
}

}  // namespace dtrain

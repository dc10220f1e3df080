#include "agent/head/machines/keeper.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "launcher/core/files.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

using nlohmann::json;
using Presence = Engine::Presence;

namespace {

constexpr std::size_t kMostText = std::size_t{16} << 20;

}  // namespace

MachineKeeper::MachineKeeper(ClusterId cluster, const fs::path& file, const fs::path& costs,
                             const Clock& clock, Hooks hooks)
    : cluster_(std::move(cluster)),
      file_(file),
      costs_file_(costs),
      clock_(clock),
      hooks_(std::move(hooks)),
      failures_(clock) {
  try {
    if (const auto text = read_file_if_there(costs_file_, kMostText)) {
      account_ = MachineAccount(wire::parse_json(*text, "it", kMostText));
    }
  } catch (const std::exception& thrown) {
    const Error why = as_defect(thrown);
    lost_account_ = Error(why.code(), costs_file_.string() + ": " + why.message())
                        .with_hint("dtrain up tells the prices anew");
    log::warn("what machines cost is not counted", {{"why", lost_account_->what()}});
  }
  try {
    const auto text = read_file_if_there(file_, kMostText);
    if (!text) return;
    const json kept = wire::parse_json(*text, "it", kMostText);
    auto wanted = wire::wanted_machines_from_json(wire::member(kept, "wanted"));
    for (const std::string& node : wire::get_strings(kept, "drained")) drained_.emplace(node);
    if (!wanted.provider.empty()) source_ = hooks_.source(wanted);
    wanted_ = std::move(wanted);
  } catch (const std::exception& thrown) {
    const Error why = as_defect(thrown);
    trouble_ = Error(why.code(), file_.string() + ": " + why.message())
                   .with_hint("dtrain up says anew what is wanted");
    log::warn("no machines are asked for", {{"why", trouble_->what()}});
  }
}

void MachineKeeper::run(Worker& worker, std::function<void()> work,
                        std::function<void(const std::optional<Error>&)> then) {
  ++running_;
  worker.add([this, work = std::move(work), then = std::move(then),
              guard = std::weak_ptr<int>(alive_)]() mutable {
    std::optional<Error> failed;
    try {
      work();
    } catch (const std::exception& thrown) {
      failed = as_defect(thrown);
    }
    hooks_.post([this, then = std::move(then), failed, guard] {
      if (!guard.lock()) return;
      --running_;
      then(failed);
    });
  });
}

void MachineKeeper::ask(std::shared_ptr<MachineSource> source, std::function<void()> work,
                        std::function<void(const std::optional<Error>&)> then) {
  busy_source_ = std::move(source);
  run(*asks_, std::move(work), [this, then = std::move(then)](const std::optional<Error>& failed) {
    busy_source_.reset();
    then(failed);
  });
}

void MachineKeeper::save(const wire::WantedMachines& wanted,
                         std::function<void(const std::optional<Error>&)> then) {
  json drained = json::array();
  for (const NodeId& node : drained_) drained.push_back(node.str());
  const json kept{{"wanted", wire::to_json(wanted)}, {"drained", std::move(drained)}};
  run(
      *writes_, [file = file_, text = wire::dump(kept) + "\n"] { write_file_atomic(file, text); },
      std::move(then));
}

void MachineKeeper::want(const json& body, std::function<void(json)> done) {
  const auto wanted =
      std::make_shared<const wire::WantedMachines>(wire::wanted_machines_from_json(body));
  std::shared_ptr<MachineSource> source;
  if (!wanted->provider.empty()) source = hooks_.source(*wanted);
  next_ = wanted;
  save(*wanted, [this, wanted, source, done = std::move(done)](const std::optional<Error>& failed) {
    if (next_ == wanted) next_.reset();
    if (failed) {
      look();
      return done(wire::error_to_json(*failed));
    }
    wanted_ = *wanted;
    source_ = source;
    if (!source_) {
      machines_.clear();
      see_told();
      hooks_.expect_machines({});
    }
    stay();
    failures_.clear();
    measured_.clear();
    broken_.clear();
    trouble_.reset();
    pause_ = kFirstLook;
    log::info("machines are wanted", {{"types", std::to_string(wanted_.types.size())}});
    if (source_) tell();  // what jobs may wait for from now on
    if (hooks_.wants) hooks_.wants(wanted_);
    look();
    done(view());
  });
}

void MachineKeeper::save_costs(std::function<void(const std::optional<Error>&)> then) {
  run(
      *writes_,
      [file = costs_file_, text = wire::dump(account_.dump()) + "\n"] {
        write_file_atomic(file, text);
      },
      std::move(then));
}

void MachineKeeper::costs(const json& body, std::function<void(json)> done) {
  account_.tell(wire::cluster_costs_from_json(body), clock_.wall());
  lost_account_.reset();
  see_told();
  save_costs([this, done = std::move(done)](const std::optional<Error>& failed) {
    if (source_) tell();
    look();
    done(failed ? wire::error_to_json(*failed) : cost_view());
  });
}

// What `up` has made: where nobody asks the provider, these are all that there are.
void MachineKeeper::see_told() {
  if (!account_.is_open()) return;
  std::vector<Machine> machines;
  for (const wire::ClusterCosts::Machine& each : account_.told().machines) {
    Machine& machine = machines.emplace_back();
    machine.node = each.node;
    machine.id = each.id;
    machine.type = each.type;
    machine.instance_type = each.instance_type;
    machine.head = each.head;
    machine.spot = each.spot;
    machine.created = each.created;
    machine.cluster = cluster_;
  }
  see(std::move(machines), !source_);
}

// Also the head's own.
void MachineKeeper::see(std::vector<Machine> machines, bool all) {
  std::erase_if(machines, [&](const Machine& each) { return each.cluster != cluster_; });
  if (!account_.see(machines, all, clock_.wall())) return;
  save_costs([](const std::optional<Error>& failed) {
    if (failed) log::warn("what machines cost is not kept", {{"why", failed->what()}});
  });
}

json MachineKeeper::cost_view() const {
  if (lost_account_) return wire::error_to_json(*lost_account_);
  return account_.view(clock_.wall());
}

// One that is stopped.
std::string MachineKeeper::what_starts(const Machine& machine) const {
  if (!machine.joins) return "started again by up";
  const wire::WantedMachines::Type* type = type_of(machine.type);
  return type == nullptr || type->launch == machine.launch
             ? "started again when jobs need one"
             : "made by another launch configuration: up --replace gives it back";
}

// Though nobody's job needs it; empty: it does not, or ranks are all there is.
std::string MachineKeeper::why_it_stays(const NodeId& node,
                                        const std::map<NodeId, std::string>& busy) const {
  const auto found = busy.find(node);
  if (found == busy.end()) return {};
  const std::string& why = found->second;
  if (!drained_.contains(node)) return why.empty() ? "" : "in use: " + why;
  return why.empty() ? "goes once its ranks have ended" : "goes once this is over: " + why;
}

json MachineKeeper::view() const {
  json types = json::array();
  const std::map<std::string, int> missing_now = missing();
  for (const wire::WantedMachines::Type& type : wanted_.types) {
    const auto* failure = failures_.find(type.name);
    const auto dear = dear_.find(type.name);
    std::optional<Error> error;
    if (dear != dear_.end()) {
      error = Error(ErrorCode::conflict, dear->second);
    } else if (failure != nullptr &&
               (missing_now.at(type.name) > 0 || gangs_.contains(type.name))) {
      error = failure->why;
    }
    types.push_back({{"type", type.name},
                     {"wanted", type.count},
                     {"error", error ? wire::error_to_json(*error).at("error") : json()}});
  }
  const std::map<NodeId, std::string> busy = hooks_.busy();
  json machines = json::array();
  for (const auto& [node, machine] : machines_) {
    const auto kept = kept_.find(node);
    const bool waits = machine.state == MachineState::stopped && machine.reason.empty();
    const std::string reason = waits ? what_starts(machine) : machine.reason;
    machines.push_back({{"node", node.str()},
                        {"type", machine.type},
                        {"id", machine.id},
                        {"state", to_string(machine.state)},
                        {"reason", kept == kept_.end() ? reason : kept->second},
                        {"stays", why_it_stays(node, busy)},
                        {"zone", machine.zone},
                        {"launch", machine.launch}});
  }
  json wanted;
  if (!wanted_.provider.empty()) {
    wire::WantedMachines shown = wanted_;  // what machines are made by may hold a person's secrets
    for (wire::WantedMachines::Type& type : shown.types) type.config = json::object();
    wanted = wire::to_json(shown);
  }
  return {{"wanted", std::move(wanted)},
          {"trouble", trouble_ ? wire::error_to_json(*trouble_).at("error") : json()},
          {"types", std::move(types)},
          {"machines", std::move(machines)}};
}

MachineKeeper::~MachineKeeper() {
  for (const auto& source : {source_, busy_source_}) {
    if (source) source->hang_up();
  }
  asks_.reset();
  writes_.reset();
  if (!account_.is_open()) return;
  try {  // for when this machine is stopped now: until then it has cost
    account_.settle(clock_.wall());
    write_file_atomic(costs_file_, wire::dump(account_.dump()) + "\n");
  } catch (const std::exception& thrown) {
    log::warn("what machines cost is not kept", {{"why", thrown.what()}});
  }
}

void MachineKeeper::end() {
  ended_ = true;
}

// At once: it may be gone again before the source has answered.
void MachineKeeper::changed(const NodeId& node) {
  if (is_here(node)) came_.try_emplace(node, clock_.now());
  look();
}

// Not later than it is armed for already.
void MachineKeeper::arm(std::chrono::milliseconds delay) {
  const Monotonic then = clock_.now() + delay;
  if (armed_ && *armed_ <= then) return;
  armed_ = then;
  hooks_.timer(delay, [this] {
    armed_.reset();
    look();
  });
}

void MachineKeeper::look() {
  if (ended_ || !source_) return;
  if (at_work_) {
    again_ = true;
    return;
  }
  at_work_ = true;
  const auto list = std::make_shared<std::vector<Machine>>();
  ask(
      source_, [source = source_, list] { *list = source->list(); },
      [this, list, source = source_](const std::optional<Error>& failed) {
        if (source != source_) {  // meanwhile something else is wanted: it is looked at anew
          again_ = true;
          return settle();
        }
        if (failed && !trouble_) {
          log::warn("it is not known which machines there are", {{"why", failed->what()}});
        }
        trouble_ = failed;
        // What is there goes on; nothing is concluded.
        if (failed) {
          moves_ = true;
          idle_left_.reset();
          return settle();
        }
        going_ ? leave(*list) : seen(*list);
      });
}

void MachineKeeper::seen(const std::vector<Machine>& list) {
  std::map<NodeId, Machine> there;
  std::map<NodeId, const Machine*> over;
  for (const Machine& machine : list) {
    if (machine.cluster != cluster_ || machine.head) continue;
    if (machine.state == MachineState::gone) {
      const auto last = machines_.find(machine.node);
      const bool is_last = last != machines_.end() && last->second.id == machine.id;
      const Machine*& its = over[machine.node];  // of several of that name the one it was
      if (its == nullptr || is_last) its = &machine;
    } else {
      there.emplace(machine.node, machine);
    }
  }
  note_taken_back(list);
  const bool changed = !std::equal(there.begin(), there.end(), machines_.begin(), machines_.end(),
                                   [](const auto& a, const auto& b) {
                                     return a.first == b.first && a.second.state == b.second.state;
                                   });
  if (changed) pause_ = kFirstLook;
  for (const NodeId& node : hooks_.made()) {
    const auto machine = there.find(node);
    if (machine != there.end() && machine->second.state == MachineState::stopped) {
      halted(node, machine->second);
    } else if (is_here(node)) {  // is there, whatever the source says
      const auto came = came_.find(node);
      lost_.erase(node);
      if (machine != there.end() && came != came_.end() && hooks_.is_prepared(node))
        failures_.forgive(machine->second.type, came->second);
    } else if (machine == there.end()) {
      const auto ended = over.find(node);
      bury(node, ended == over.end() ? nullptr : ended->second);
    } else if (machine->second.state == MachineState::running) {
      hooks_.begin(node);
      runs_.try_emplace(node, clock_.now());
    }
    const bool is_lost = hooks_.node(node) == Presence::lost && machine != there.end();
    if (is_lost && lost_.try_emplace(node, clock_.now()).second)
      ended(node, machine->second.type, "it has left");
  }
  machines_ = std::move(there);
  std::erase_if(kept_, [&](const auto& each) { return !machines_.contains(each.first); });
  std::erase_if(asked_, [&](const auto& each) { return !machines_.contains(each.first); });
  for (const auto& [node, machine] : machines_) note_asked(machine);
  see(list, true);
  see_ups();
  decide();
}

// Whoever has made them, and while they go: the queue is to hear of it before their nodes are given
// up.
void MachineKeeper::note_taken_back(const std::vector<Machine>& list) {
  std::set<NodeId> live;
  for (const Machine& machine : list) {
    if (is_live(machine.state)) live.insert(machine.node);
  }
  std::set<std::string> still;
  for (const Machine& machine : list) {
    const bool is_its = machine.cluster == cluster_ && !machine.head && !is_live(machine.state);
    if (!is_its || !machine.taken_back) continue;
    still.insert(machine.id);
    // Where another of that name has come it is no word on that one, now or when that goes too.
    if (live.contains(machine.node) || taken_back_.contains(machine.id)) continue;
    hooks_.explain(machine.node, machine.reason, true);
  }
  taken_back_ = std::move(still);
}

// The first word on it counts: a list may have another second than the answer.
void MachineKeeper::note_asked(const Machine& machine) {
  const bool is_said = machine.created != WallTime{};
  asked_.try_emplace(machine.node, is_said ? machine.created : clock_.wall());
}

// Those that an `up` has made: it prepares them, and they are given back by nobody else. What it
// has left half way is not waited for.
void MachineKeeper::see_ups() {
  const auto is_gone = [&](const auto& each) {
    const auto machine = machines_.find(each.first);
    return machine == machines_.end() || machine->second.joins;
  };
  std::erase_if(ups_, is_gone);
  for (const auto& [node, machine] : machines_) {
    if (machine.joins) continue;
    if (is_here(node) || machine.state != MachineState::running) {
      ups_.erase(node);
    } else {
      ups_.try_emplace(node, clock_.now());
    }
  }
}

bool MachineKeeper::is_awaited(const NodeId& node) const {
  const auto since = ups_.find(node);
  return since == ups_.end() || clock_.now() - since->second < kPrepareLimit;
}

bool MachineKeeper::is_here(const NodeId& node) const {
  return hooks_.node(node) == Presence::here;
}

// Names that nobody has come to have are free again.
void MachineKeeper::fail(const std::string& type, const Error& why, int count) {
  next_name_.erase(type);
  failures_.add(type, why, count);
}

void MachineKeeper::remove(const NodeId& node, const std::string& why) {
  try {
    hooks_.remove(node, why);
  } catch (const Error& error) {  // it is being removed, or was
    log::info("a node is not removed", {{"node", node.str()}, {"why", error.what()}});
  }
}

// The next would not do better, so not at once.
void MachineKeeper::ended(const NodeId& node, const std::string& type, const std::string& why) {
  const auto came = came_.find(node);
  if (came == came_.end()) {
    // Of a head that was started anew: it has come before.
    if (hooks_.node(node) != Presence::unseen) return;
    fail(type, Error(ErrorCode::failed, node.str() + " did not join: " + why));
  } else if (clock_.now() - came->second < MachineFailures::kShortLife) {
    fail(type, Error(ErrorCode::failed, node.str() + " ended as soon as it had come: " + why));
  } else if (hooks_.is_prepared(node)) {
    failures_.forgive(type, came->second);
  } else if (!broken_.contains(node)) {  // of that it has been told
    fail(type, Error(ErrorCode::failed, node.str() + " ended before it was prepared: " + why));
  }
}

// Its machine is gone.
void MachineKeeper::bury(const NodeId& node, const Machine* machine) {
  const std::string why = machine == nullptr || machine->reason.empty()
                              ? "its machine is gone"
                              : "its machine is gone: " + machine->reason;
  log::warn("a machine is gone", {{"node", node.str()}, {"why", why}});
  if (machine != nullptr && !machine->reason.empty()) {
    hooks_.explain(node, machine->reason, machine->taken_back);
  }
  const auto before = machines_.find(node);
  const Machine* known = machine;
  if (known == nullptr && before != machines_.end()) known = &before->second;
  if (known != nullptr && lost_.erase(node) == 0) ended(node, known->type, why);
  forget(node);
  remove(node, why);
}

// What is known of a node as it was so far.
void MachineKeeper::forget(const NodeId& node) {
  came_.erase(node);
  asked_.erase(node);
  runs_.erase(node);
  idle_.erase(node);
  lost_.erase(node);
  broken_.erase(node);
  drained_.erase(node);
}

const wire::WantedMachines::Type* MachineKeeper::type_of(const std::string& name) const {
  const auto found = std::find_if(wanted_.types.begin(), wanted_.types.end(),
                                  [&](const auto& type) { return type.name == name; });
  return found == wanted_.types.end() ? nullptr : &*found;
}

// The next look, if one is needed.
void MachineKeeper::settle() {
  at_work_ = false;
  if (source_) tell();
  if (ended_ || !source_) return;
  armed_.reset();  // for what has been looked at
  if (std::exchange(again_, false)) return arm(kBreath);
  std::optional<std::chrono::milliseconds> next;
  if (idle_left_) next = std::chrono::ceil<std::chrono::milliseconds>(*idle_left_);
  const std::map<std::string, int> missing_now = missing();
  const bool waits = moves_ || std::any_of(missing_now.begin(), missing_now.end(),
                                           [](const auto& each) { return each.second > 0; });
  if (waits) {
    next = std::min(pause_, next.value_or(pause_));
    pause_ = std::min(kLastLook, pause_ + pause_ / 2);
  }
  if (next) arm(*next);
  if (std::exchange(others_, false)) needs();
}

// Of each type, so many nodes are not here yet, of those that are to stand ready and those that
// were asked for.
std::map<std::string, int> MachineKeeper::missing() const {
  std::map<std::string, int> missing;
  std::map<std::string, int> coming;
  for (const wire::WantedMachines::Type& type : wanted_.types) missing[type.name] = type.count;
  for (const auto& [node, machine] : machines_) {
    const auto found = missing.find(machine.type);
    if (found == missing.end()) continue;
    if (is_here(node)) {
      if (!hooks_.leaves(node)) --found->second;
    } else if (is_live(machine.state) && hooks_.node(node) == Presence::unseen &&
               !hopeless_.contains(node)) {
      ++coming[machine.type];
    }
  }
  for (auto& [type, count] : missing) count = std::max(count, coming[type]);
  return missing;
}

}  // namespace dtrain::head

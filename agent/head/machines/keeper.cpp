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
constexpr const char* kContained = "set -- --contained\n";

bool is_there(const Machine& machine) {
  return machine.state == MachineState::pending || machine.state == MachineState::running;
}

}  // namespace

MachineKeeper::MachineKeeper(ClusterId cluster, const fs::path& file, const Clock& clock,
                             Hooks hooks)
    : cluster_(std::move(cluster)), file_(file), clock_(clock), hooks_(std::move(hooks)) {
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

template <typename Work, typename Then>
void MachineKeeper::run(Work work, Then then) {
  ++running_;
  worker_.add([this, work = std::move(work), then = std::move(then),
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

void MachineKeeper::save(const wire::WantedMachines& wanted,
                         std::function<void(const std::optional<Error>&)> then) {
  json drained = json::array();
  for (const NodeId& node : drained_) drained.push_back(node.str());
  const json kept{{"wanted", wire::to_json(wanted)}, {"drained", std::move(drained)}};
  run([file = file_, text = wire::dump(kept) + "\n"] { write_file_atomic(file, text); },
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
      hooks_.expect_machines({});
    }
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

json MachineKeeper::view() const {
  json types = json::array();
  const std::map<std::string, int> missing_now = missing();
  for (const wire::WantedMachines::Type& type : wanted_.types) {
    const auto failure = failures_.find(type.name);
    types.push_back({{"type", type.name},
                     {"wanted", type.count},
                     {"error", failure == failures_.end() || (missing_now.at(type.name) == 0 &&
                                                              !gangs_.contains(type.name))
                                   ? json()
                                   : wire::error_to_json(failure->second.why).at("error")}});
  }
  json machines = json::array();
  for (const auto& [node, machine] : machines_) {
    machines.push_back({{"node", node.str()},
                        {"type", machine.type},
                        {"id", machine.id},
                        {"state", to_string(machine.state)},
                        {"reason", machine.reason},
                        {"zone", machine.zone}});
  }
  return {{"wanted", wanted_.provider.empty() ? json() : wire::to_json(wanted_)},
          {"trouble", trouble_ ? wire::error_to_json(*trouble_).at("error") : json()},
          {"types", std::move(types)},
          {"machines", std::move(machines)}};
}

void MachineKeeper::end() {
  ended_ = true;
}

// At once: it may be gone again before the source has answered.
void MachineKeeper::changed(const NodeId& node) {
  if (is_here(node)) came_.try_emplace(node, clock_.now());
  look();
}

void MachineKeeper::needs() {
  if (tells_ || ended_ || !source_) return;
  if (at_work_) {
    others_ = true;
    return;
  }
  const Growth growth = tell();
  std::map<std::string, int> there;
  bool in_vain = false;
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows()) continue;
    const bool comes = hooks_.node(node) == Presence::unseen;
    const bool is_beyond = ++there[machine.type] > type->count;
    in_vain = in_vain || (comes && is_beyond && !growth.needed.contains(node));
  }
  if (in_vain || growth.short_of_room || !growth.gangs.empty()) return look();
  gangs_.clear();
  in_use(growth);
  if (idle_left_) arm(std::chrono::ceil<std::chrono::milliseconds>(*idle_left_));
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
  run([source = source_, list] { *list = source->list(); },
      [this, list](const std::optional<Error>& failed) {
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
        seen(*list);
      });
}

void MachineKeeper::seen(const std::vector<Machine>& list) {
  std::map<NodeId, Machine> there;
  std::map<NodeId, const Machine*> over;
  for (const Machine& machine : list) {
    if (machine.cluster != cluster_) continue;
    if (machine.state == MachineState::gone) {
      over.emplace(machine.node, &machine);
    } else {
      there.emplace(machine.node, machine);
    }
  }
  const bool changed = !std::equal(there.begin(), there.end(), machines_.begin(), machines_.end(),
                                   [](const auto& a, const auto& b) {
                                     return a.first == b.first && a.second.state == b.second.state;
                                   });
  if (changed) pause_ = kFirstLook;
  for (const NodeId& node : hooks_.made()) {
    const auto machine = there.find(node);
    if (is_here(node)) {  // is there, whatever the source says
      const auto came = came_.find(node);
      lost_.erase(node);
      if (machine != there.end() && came != came_.end())
        forgive(machine->second.type, came->second);
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
  decide();
}

bool MachineKeeper::is_here(const NodeId& node) const {
  return hooks_.node(node) == Presence::here;
}

void MachineKeeper::remove(const NodeId& node, const std::string& why) {
  try {
    hooks_.remove(node, why);
  } catch (const Error& error) {  // it is being removed, or was
    log::info("a node is not removed", {{"node", node.str()}, {"why", error.what()}});
  }
}

// One that has come since then stays: they can be had again.
void MachineKeeper::forgive(const std::string& type, Monotonic came) {
  const auto failure = failures_.find(type);
  const bool is_newer = failure != failures_.end() && came > failure->second.at;
  if (is_newer && clock_.now() - came >= kShortLife) failures_.erase(failure);
}

// The next would not do better, so not at once.
void MachineKeeper::ended(const NodeId& node, const std::string& type, const std::string& why) {
  const auto came = came_.find(node);
  if (came == came_.end()) {
    // Of a head that was started anew: it has come before.
    if (hooks_.node(node) != Presence::unseen) return;
    fail(type, Error(ErrorCode::failed, node.str() + " did not join: " + why));
  } else if (clock_.now() - came->second < kShortLife) {
    fail(type, Error(ErrorCode::failed, node.str() + " ended as soon as it had come: " + why));
  } else {
    forgive(type, came->second);
  }
}

// Its machine is gone.
void MachineKeeper::bury(const NodeId& node, const Machine* machine) {
  const std::string why = machine == nullptr || machine->reason.empty()
                              ? "its machine is gone"
                              : "its machine is gone: " + machine->reason;
  log::warn("a machine is gone", {{"node", node.str()}, {"why", why}});
  const auto before = machines_.find(node);
  const Machine* known = machine;
  if (known == nullptr && before != machines_.end()) known = &before->second;
  if (known != nullptr && lost_.erase(node) == 0) ended(node, known->type, why);
  came_.erase(node);
  runs_.erase(node);
  idle_.erase(node);
  broken_.erase(node);
  drained_.erase(node);
  remove(node, why);
}

void MachineKeeper::fail(const std::string& type, const Error& why, int count) {
  const auto now = clock_.now();
  next_name_.erase(type);  // names that nobody has come to have are free again
  const auto found = failures_.find(type);
  // Those of one look, or of one request, are one.
  if (found != failures_.end() && found->second.again > now) {
    found->second.count = std::min(found->second.count, count);
    return;
  }
  const auto pause =
      found == failures_.end() ? kFirstRetry : std::min(kLastRetry, found->second.pause * 2);
  failures_.insert_or_assign(type, Failure{why, count, pause, now, now + pause});
  log::warn("no machine of this type can be had now", {{"type", type}, {"why", why.what()}});
}

const wire::WantedMachines::Type* MachineKeeper::type_of(const std::string& name) const {
  const auto found = std::find_if(wanted_.types.begin(), wanted_.types.end(),
                                  [&](const auto& type) { return type.name == name; });
  return found == wanted_.types.end() ? nullptr : &*found;
}

void MachineKeeper::decide() {
  const std::vector<NodeId> made = hooks_.made();
  const std::set<NodeId> may_come(made.begin(), made.end());
  std::vector<Machine> there;
  Groups useless;
  std::set<std::string> useful;
  Groups groups;
  moves_ = false;
  hopeless_.clear();
  for (const auto& [node, machine] : machines_) {
    groups[group_of(machine)].push_back(machine);
    const bool is_here_now = is_here(node);
    const bool is_lost = hooks_.node(node) == Presence::lost;
    moves_ = moves_ || machine.state != MachineState::running || !is_here_now;
    if (!is_there(machine)) continue;
    if (!is_useful(machine, may_come.contains(node))) {
      useless[group_of(machine)].push_back(machine);
      hopeless_.insert(node);
      continue;
    }
    useful.insert(group_of(machine));
    // Where its node is lost another takes its place.
    if (!is_lost) there.push_back(machine);
  }
  measure();
  const Growth growth = tell();
  MachineDecision decision = decide_machines(wanted_, there, in_use(growth));
  for (auto& [group, machines] : useless) {
    if (useful.contains(group)) continue;
    decision.release.push_back({std::move(machines), "its nodes do not come"});
  }
  const auto asking = std::make_shared<Asking>();
  asking->source = source_;
  const std::set<NodeId> drained = drained_;
  undo_drains(decision.release);
  give_back(decision.release, groups, *asking);
  if (drained_ != drained) {
    save(next_ ? *next_ : wanted_, [](const std::optional<Error>& failed) {
      if (failed) log::warn("what is to be given back is not kept", {{"why", failed->what()}});
    });
  }
  asking->open = 1;  // this call's own
  bool asks = false;
  for (const auto& [type, count] : decision.create) {
    moves_ = true;
    if (!may_ask(type, count)) continue;
    asks = true;
    ask_for(type, count, asking);
  }
  gangs_.clear();
  int open = asks ? 0 : kMostGangs;  // those that are to stand ready anyway may do
  for (const Growth::Gang& gang : growth.gangs) {
    moves_ = true;
    gangs_[gang.type] += gang.count;
    if (open == 0 || !may_ask(gang.type, gang.count)) continue;
    --open;
    ask_for(gang.type, gang.count, asking);
  }
  if (--asking->open == 0) act(asking);
}

bool MachineKeeper::may_ask(const std::string& type, int count) const {
  const auto failure = failures_.find(type);
  return failure == failures_.end() || failure->second.again <= clock_.now() ||
         count < failure->second.count;
}

// What those that are here have, and whether they are of use: another would not be either. Of types
// of which more may be asked for.
void MachineKeeper::measure() {
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows() || !is_here(node)) continue;
    if (const auto has = hooks_.capacity(node)) {
      NodeCapacity& least =
          measured_.try_emplace({machine.type, machine.launch}, *has).first->second;
      least.cpus = std::min(least.cpus, has->cpus);
      least.gpus = std::min(least.gpus, has->gpus);
      least.memory = std::min(least.memory, has->memory);
      least.glibc = std::min(least.glibc, has->glibc);
    }
    const std::string why = hooks_.broken(node);
    if (why.empty()) {
      broken_.erase(node);
    } else if (broken_.insert(node).second) {
      fail(machine.type, Error(ErrorCode::failed, node.str() + " " + why));
    }
  }
}

MachinesToCome MachineKeeper::to_come() const {
  MachinesToCome result;
  for (const auto& [type, count] : missing()) result.nodes += count;
  const bool grows = std::any_of(wanted_.types.begin(), wanted_.types.end(),
                                 [](const auto& type) { return type.grows(); });
  if (!grows) return result;
  std::map<std::string, int> there;
  for (const auto& [node, machine] : machines_) {
    const Presence now = hooks_.node(node);
    if (!is_there(machine) || now == Presence::lost || hopeless_.contains(node)) continue;
    ++there[machine.type];
    if (now != Presence::unseen) continue;
    const bool runs = machine.state == MachineState::running;
    result.coming.push_back(
        {node, machine.type, runs, runs ? "it joins" : machine.reason, group_of(machine)});
  }
  int least = 0;
  for (const wire::WantedMachines::Type& wanted : wanted_.types) {
    MachineType& type = result.types.emplace_back();
    type.name = wanted.name;
    type.there = there[wanted.name];
    type.least = wanted.count;
    type.most = wanted.most();
    type.priority = wanted.priority;
    const auto failure = failures_.find(wanted.name);
    if (failure != failures_.end() && failure->second.again > clock_.now()) {
      type.trouble = failure->second.why.message();
      type.refused = failure->second.count;
    }
    least += wanted.count;
    if (const auto found = measured_.find({wanted.name, wanted.launch}); found != measured_.end()) {
      type.each = found->second;
      type.known = true;
    } else {
      type.each = any_machine();
      type.known = wanted.cpus && wanted.gpus;
      if (type.known) {
        type.each.cpus = *wanted.cpus;
        type.each.gpus = *wanted.gpus;
        type.each.memory = wanted.memory.value_or(type.each.memory);
      }
    }
  }
  result.most = std::max(least, wanted_.max_workers);
  return result;
}

Growth MachineKeeper::tell() {
  tells_ = true;
  Growth growth = hooks_.expect_machines(to_come());
  tells_ = false;
  return growth;
}

// What jobs run on or wait for, and what has not been idle for long: of types of which there may be
// more than are to stand ready.
std::set<NodeId> MachineKeeper::in_use(const Growth& growth) {
  std::set<NodeId> used;
  idle_left_.reset();
  const std::set<NodeId> with_ranks = hooks_.with_ranks();
  for (const auto& [node, machine] : machines_) {
    const wire::WantedMachines::Type* type = type_of(machine.type);
    if (type == nullptr || !type->grows()) {
      idle_.erase(node);
      continue;
    }
    if (with_ranks.contains(node) || growth.needed.contains(node)) {
      idle_.erase(node);
      used.insert(node);
      continue;
    }
    const Presence now = hooks_.node(node);
    if (now != Presence::here && now != Presence::away) continue;  // nobody waits for it any more
    const auto since = idle_.try_emplace(node, clock_.now()).first->second;
    const auto left = since + type->idle_timeout - clock_.now();
    if (left <= Monotonic::duration::zero() || growth.short_of_room) continue;
    used.insert(node);
    idle_left_ = std::min(left, idle_left_.value_or(left));
  }
  return used;
}

// Its node is here, or may still come.
bool MachineKeeper::is_useful(const Machine& machine, bool may_come) {
  const NodeId& node = machine.node;
  if (is_here(node)) return true;
  const auto since = [&](const std::map<NodeId, Monotonic>& times) {
    const auto found = times.find(node);
    return found == times.end() ? Monotonic::duration::zero() : clock_.now() - found->second;
  };
  if (since(lost_) > kLostLimit) return false;
  const bool late = hooks_.node(node) == Presence::unseen && since(runs_) > kJoinLimit;
  if (may_come && !late) return true;
  if (runs_.contains(node)) {  // once
    ended(node, machine.type, "its machine runs, and nothing was heard of it");
    remove(node, "it did not join");
    runs_.erase(node);
  }
  return false;
}

// What is to stay after all takes ranks again.
void MachineKeeper::undo_drains(const std::vector<MachineDecision::Release>& release) {
  std::set<std::string> goes;
  for (const MachineDecision::Release& each : release) {
    goes.insert(group_of(each.machines.front()));
  }
  for (auto node = drained_.begin(); node != drained_.end();) {
    const auto machine = machines_.find(*node);
    if (machine != machines_.end() && goes.contains(group_of(machine->second))) {
      ++node;
      continue;
    }
    try {
      if (machine != machines_.end()) hooks_.drain(*node, true);
    } catch (const Error& error) {
      log::info("a node stays drained", {{"node", node->str()}, {"why", error.what()}});
    }
    node = drained_.erase(node);
  }
}

void MachineKeeper::give_back(const std::vector<MachineDecision::Release>& release,
                              const Groups& groups, Asking& asking) {
  if (release.empty()) return;
  moves_ = true;
  const std::set<NodeId> with_ranks = hooks_.with_ranks();
  for (const MachineDecision::Release& each : release) {
    const std::vector<Machine>& machines = groups.at(group_of(each.machines.front()));
    if (!may_go(machines, with_ranks)) continue;
    for (const Machine& machine : machines) {
      log::info("a machine is given back", {{"node", machine.node.str()}, {"why", each.reason}});
      remove(machine.node, "it is given back: " + each.reason);
    }
    asking.release.insert(asking.release.end(), machines.begin(), machines.end());
  }
}

// False: their ranks are to end before.
bool MachineKeeper::may_go(const std::vector<Machine>& machines,
                           const std::set<NodeId>& with_ranks) {
  bool idle = true;
  for (const Machine& machine : machines) {
    // One that is away may come back, and has its ranks meanwhile.
    const Presence now = hooks_.node(machine.node);
    if (now != Presence::here && now != Presence::away) continue;
    try {
      // What a person has drained stays so.
      if (!hooks_.is_drained(machine.node)) {
        hooks_.drain(machine.node, false);
        drained_.insert(machine.node);
      }
    } catch (const Error& error) {
      log::info("a node is not drained", {{"node", machine.node.str()}, {"why", error.what()}});
    }
    idle = idle && !with_ranks.contains(machine.node);
  }
  return idle;
}

NodeId MachineKeeper::free_name(const std::string& type) {
  for (int& number = next_name_.try_emplace(type, 1).first->second;;) {
    NodeId node(type + "-" + std::to_string(number++));
    if (!hooks_.is_taken(node) && !machines_.contains(node)) return node;
  }
}

void MachineKeeper::ask_for(const std::string& type, int count,
                            const std::shared_ptr<Asking>& asking) {
  Request request;
  request.type = type;
  request.cluster = cluster_;
  if (const auto* wanted = type_of(type)) request.launch = wanted->launch;
  for (int i = 0; i < count; ++i) {
    const NodeId& node = request.nodes.emplace_back(free_name(type));
    // What is known of another of this name, which never came.
    came_.erase(node);
    runs_.erase(node);
    idle_.erase(node);
    lost_.erase(node);
    drained_.erase(node);
  }
  const auto scripts = std::make_shared<std::map<NodeId, std::string>>();
  request.boot = [scripts](const NodeId& node) { return kContained + scripts->at(node); };
  const std::vector<NodeId> nodes = request.nodes;
  asking->requests.push_back(std::move(request));
  asking->open += nodes.size();
  for (const NodeId& node : nodes) {
    const auto issued = [this, type, node, scripts, asking, guard = std::weak_ptr<int>(alive_)](
                            const std::string& script, const std::optional<Error>& failed) {
      if (!guard.lock()) return;
      if (failed) {
        fail(type, *failed);
      } else {
        scripts->emplace(node, script);
      }
      if (--asking->open == 0) act(asking);
    };
    try {
      hooks_.issue(node, type, wanted_.addresses, issued);
    } catch (const Error& error) {
      issued("", error);
    }
  }
}

void MachineKeeper::act(const std::shared_ptr<Asking>& asking) {
  // Of a request whose credentials are not all there none is used; nothing is asked for that may
  // be wanted no more.
  const bool over = ended_ || next_ || asking->source != source_;
  std::erase_if(asking->requests, [&](const Request& request) {
    const bool failed = over || !may_ask(request.type, static_cast<int>(request.nodes.size()));
    if (failed) {
      for (const NodeId& node : request.nodes) remove(node, "it was not asked for");
    }
    return failed;
  });
  if (over || (asking->requests.empty() && asking->release.empty())) return settle();
  const auto outcomes = std::make_shared<std::vector<MachineOutcome>>();
  const auto released = std::make_shared<std::vector<MachineOutcome>>();
  run(
      [source = asking->source, asking, outcomes, released] {
        if (!asking->release.empty()) {
          source->release(asking->release,
                          [&](const MachineOutcome& each) { released->push_back(each); });
        }
        if (!asking->requests.empty()) {
          source->create(asking->requests,
                         [&](const MachineOutcome& each) { outcomes->push_back(each); });
        }
      },
      [this, asking, outcomes, released](const std::optional<Error>& failed) {
        if (failed) {
          for (const Request& request : asking->requests) fail(request.type, *failed);
        }
        bool moved = !outcomes->empty();
        std::map<NodeId, int> together;
        for (const Request& request : asking->requests) {
          for (const NodeId& node : request.nodes) {
            together.emplace(node, static_cast<int>(request.nodes.size()));
          }
        }
        for (const MachineOutcome& each : *outcomes) outcome(each, together[each.machine.node]);
        for (const MachineOutcome& each : *released) {
          moved = moved || !each.error;
          if (!each.error) continue;
          log::warn("a machine cannot be given back",
                    {{"node", each.machine.node.str()}, {"why", each.error->what()}});
        }
        if (moved) pause_ = kFirstLook;
        settle();
      });
}

void MachineKeeper::outcome(const MachineOutcome& outcome, int together) {
  const Machine& machine = outcome.machine;
  if (outcome.error) {
    remove(machine.node, "its machine cannot be had");
    fail(machine.type, *outcome.error, together);
    return;
  }
  log::info("a machine was asked for", {{"node", machine.node.str()}, {"id", machine.id}});
  machines_.insert_or_assign(machine.node, machine);
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
      --found->second;
    } else if (is_there(machine) && hooks_.node(node) == Presence::unseen &&
               !hopeless_.contains(node)) {
      ++coming[machine.type];
    }
  }
  for (auto& [type, count] : missing) count = std::max(count, coming[type]);
  return missing;
}

}  // namespace dtrain::head

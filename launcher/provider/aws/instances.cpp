#include "launcher/provider/aws/instances.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/belongings.hpp"
#include "launcher/provider/aws/boot_data.hpp"
#include "launcher/provider/aws/credential_chain.hpp"
#include "launcher/provider/aws/form.hpp"
#include "launcher/provider/aws/retry.hpp"
#include "launcher/provider/listing.hpp"
#include "launcher/remote/ssh/blob.hpp"
#include "launcher/spec/ec2_model.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kIntentTag = "dtrain-intent";
constexpr const char* kJoinsTag = "dtrain-joins";     // the head has asked for it
constexpr const char* kNumberedTag = "dtrain-node.";  // the k-th instance's node
constexpr const char* kNotFound = "InvalidInstanceID.NotFound";
constexpr const char* kWrongState = "IncorrectInstanceState";  // for what is asked of it
constexpr int kLooks = 5;            // for what a lost answer may have made
constexpr std::size_t kBatch = 100;  // ids of one request

MachineState state_of(const std::string& name) {
  if (name == "pending") return MachineState::pending;
  if (name == "running") return MachineState::running;
  if (name == "terminated") return MachineState::gone;
  if (name == "stopping" || name == "stopped") return MachineState::stopped;
  return MachineState::stopping;  // shutting-down
}

bool has_none(const std::string& code) {
  return is_want_of_capacity(code) || code == "Unsupported" || code == "SpotMaxPriceTooLow" ||
         code == "InsufficientFreeAddressesInSubnet" || code == "MaxSpotInstanceCountExceeded";
}

// What a quota is of: an instance type, where a place has one of its own, as spot or on demand.
using QuotaOf = std::pair<std::string, bool>;
QuotaOf quota_of_place(const Launch::Place& place) {
  return {place.config.value("InstanceType", ""), place.config.contains("InstanceMarketOptions")};
}

// Without a node where its tags do not say it.
Machine machine_of(const std::string& cluster_name, const Xml& instance, Tags& tags) {
  for (const Xml& tag : instance.list("tagSet")) tags[tag.at("key")] = tag.at("value");
  // Of several that one request has made, each is the one of its number.
  const auto numbered = tags.find(kNumberedTag + instance.at("amiLaunchIndex"));
  if (numbered != tags.end()) tags["dtrain-node"] = numbered->second;
  Machine machine = dtrain::machine_of(cluster_name, tags).value_or(Machine());
  machine.joins = tags.contains(kJoinsTag);
  machine.id = instance.at("instanceId");
  machine.instance_type = instance.at("instanceType");
  machine.state = state_of(instance.at("instanceState/name"));
  machine.address = instance.at("privateIpAddress");
  machine.external_address = instance.at("ipAddress");
  machine.zone = instance.at("placement/availabilityZone");
  machine.spot = instance.at("instanceLifecycle") == "spot";
  if (machine.state == MachineState::stopped) {
    const bool is_asked = instance.at("stateReason/code") == "Client.UserInitiatedShutdown";
    if (!is_asked) machine.reason = instance.at("stateReason/message");
    if (instance.at("instanceState/name") == "stopping") machine.reason = kStopsNow;
  } else if (!is_live(machine.state)) {
    machine.reason = instance.at("stateReason/message");
    if (machine.reason.empty()) machine.reason = instance.at("instanceState/name");
  }
  if (!is_live(machine.state)) {  // SpotInstanceTermination, or Shutdown where it is stopped
    machine.taken_back = instance.at("stateReason/code").starts_with("Server.SpotInstance");
  }
  if (const std::string time = instance.at("launchTime"); !time.empty())
    machine.created = time_of(time);
  return machine;
}

Machine awaited(const Intent& intent, std::size_t number) {
  Machine machine;
  machine.node = intent.nodes[number];
  machine.type = intent.type;
  machine.head = intent.head;
  machine.joins = intent.joins;
  if (number < intent.ids.size()) machine.id = intent.ids[number];
  machine.state = MachineState::pending;
  machine.reason =
      "asked for in " + (intent.zone.empty() ? "any zone" : intent.zone) + ", not known to EC2 yet";
  machine.zone = intent.zone;
  machine.cluster = intent.cluster;
  machine.launch = intent.launch;
  machine.created = intent.asked;
  return machine;
}

Machine none_of(const Request& request, const NodeId& node) {
  Machine machine;
  machine.node = node;
  machine.type = request.type;
  machine.head = request.head;
  machine.joins = request.boot != nullptr;
  machine.cluster = request.cluster;
  machine.launch = request.launch;
  machine.state = MachineState::gone;
  return machine;
}

// Machines by what is known of them.
class Index {
 public:
  explicit Index(const std::vector<Machine>& machines) {
    for (const Machine& machine : machines) {
      if (!machine.id.empty()) by_id_.emplace(machine.id, &machine);
      by_node_.emplace(std::pair(machine.cluster, machine.node), &machine);
    }
  }

  // Null: it is not there. One of whose two ids one is not known is found by its node.
  const Machine* find(const Machine& machine) const {
    if (const auto same = by_id_.find(machine.id); same != by_id_.end()) return same->second;
    const auto found = by_node_.find({machine.cluster, machine.node});
    const bool is_other =
        found == by_node_.end() || (!machine.id.empty() && !found->second->id.empty());
    return is_other ? nullptr : found->second;
  }

 private:
  std::map<std::string, const Machine*> by_id_;
  std::map<std::pair<ClusterId, NodeId>, const Machine*> by_node_;
};

}  // namespace

void for_each_instance(Client& client, Form filter,
                       const std::function<void(const Xml& instance)>& take,
                       const std::stop_token& stop) {
  filter.emplace_back("MaxResults", "1000");
  CallOptions options;
  options.stop = stop;
  client.ec2_pages(
      "DescribeInstances", filter,
      [&](const Xml& page) {
        for (const Xml& reservation : page.list("reservationSet")) {
          for (const Xml& instance : reservation.list("instancesSet")) take(instance);
        }
      },
      options);
}

Instances::Instances(Client& client, std::string cluster_name, fs::path intents,
                     std::function<Launch(const Request& request)> launch,
                     std::function<void(const Machine& machine, const Tags& tags)> saw)
    : client_(client),
      cluster_name_(std::move(cluster_name)),
      intents_(std::move(intents)),
      launch_(std::move(launch)),
      saw_(std::move(saw)) {}

std::vector<Instances::Seen> Instances::seen(const Form& filter, const std::stop_token& stop) {
  std::vector<Seen> found;
  for_each_instance(
      client_, filter,
      [&](const Xml& instance) {
        Tags tags;
        Machine machine = aws::machine_of(cluster_name_, instance, tags);
        if (saw_ && !machine.node.empty()) saw_(machine, tags);
        found.push_back({std::move(machine), tags[kIntentTag]});
      },
      stop);
  return found;
}

std::vector<Machine> Instances::named(bool with_taken_back) {
  std::vector<Machine> machines = listed({}, with_taken_back);
  std::erase_if(machines, [](const Machine& each) { return each.node.empty(); });
  return machines;
}

std::vector<Machine> Instances::listed(const std::stop_token& stop, bool with_taken_back) {
  std::vector<Machine> machines;
  std::set<std::string> ids;
  std::set<std::string> tokens;
  for (Seen& each : seen(of_cluster(cluster_name_), stop)) {
    correct(each.machine);
    ids.insert(each.machine.id);
    tokens.insert(each.intent);
    const bool is_told =
        each.machine.state != MachineState::gone || (with_taken_back && each.machine.taken_back);
    if (is_told) machines.push_back(std::move(each.machine));
  }
  const WallTime now = client_.world().clock.wall();
  for (const Intent& intent : intents_.all()) {
    const bool known = intent.ids.empty()
                           ? tokens.contains(intent.token)
                           : std::all_of(intent.ids.begin(), intent.ids.end(),
                                         [&](const auto& id) { return ids.contains(id); });
    if (known || now - intent.asked > kUnseen) {
      intents_.remove(intent.token);
      continue;
    }
    for (std::size_t i = 0; i < intent.nodes.size(); ++i) {
      if (i < intent.ids.size() && ids.contains(intent.ids[i])) continue;
      machines.push_back(awaited(intent, i));
    }
  }
  sort_by_node(machines);
  return machines;
}

void Instances::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  // Of what use would the others be, which cost?
  bool headless = false;
  const OutcomeSink heard = [&](const MachineOutcome& outcome) {
    headless = headless || (outcome.machine.head && outcome.error);
    tell(outcome);
  };
  ask_for_missing(list(), requests, heard,
                  [&](const Request& request, const std::vector<NodeId>& missing) {
                    if (!headless) return ask_for(request, missing, heard);
                    const Error why(ErrorCode::conflict, "not asked for: there is no head");
                    for (const NodeId& node : missing) tell({none_of(request, node), why});
                  });
}

void Instances::ask_for(const Request& request, const std::vector<NodeId>& nodes,
                        const OutcomeSink& tell) {
  const auto by_halves = [&] {
    const auto half = nodes.begin() + static_cast<std::ptrdiff_t>(nodes.size() / 2);
    ask_for(request, {nodes.begin(), half}, tell);
    ask_for(request, {half, nodes.end()}, tell);
  };
  if (nodes.size() > kMostTogether) return by_halves();
  std::optional<Error> failed;
  try {
    const Launch launch = launch_(request);
    BootData start{{}, launch.settings, launch.config.value("UserData", ""), launch.user};
    if (request.boot) {
      for (const NodeId& node : nodes) start.scripts.push_back(request.boot(node));
    }
    const std::string data = packed(start);
    if (data.size() > kMostBootData && nodes.size() > 1) return by_halves();
    if (data.size() > kMostBootData) {
      throw Error(ErrorCode::exhausted, "the boot data of " + nodes.front().str() + " are " +
                                            human_bytes(data.size()) + ", and EC2 takes 16 KiB");
    }
    std::vector<std::string> tried;
    std::string hint;
    std::set<QuotaOf> full;
    for (const Launch::Place* place : in_turn(launch, request.type)) {
      const QuotaOf kind = quota_of_place(*place);
      if (full.contains(kind)) continue;
      const auto answer = ask_at(request, launch, *place, nodes, data);
      if (const auto* made = std::get_if<std::vector<Machine>>(&answer)) {
        full_.erase({request.type, place->zone});
        for (const Machine& machine : *made) tell({machine, std::nullopt});
        return;
      }
      const NoRoom& none = std::get<NoRoom>(answer);
      tried.push_back(none.why);
      hint = none.hint;
      if (none.anywhere) {
        full.insert(kind);
      } else {
        note_full(request.type, place->zone);
      }
    }
    failed.emplace(ErrorCode::exhausted, "there is no room for " + std::to_string(nodes.size()) +
                                             " of " + printable(request.type, false) + ": " +
                                             join(tried, "; "));
    if (!hint.empty()) failed->with_hint(hint);
  } catch (const Error& error) {
    failed = error;
  }
  for (const NodeId& node : nodes) tell({none_of(request, node), failed});
}

// Of those that differ in the zone alone the ones that had no room are last for a while: what is
// wanted first, another instance type or spot, stays first.
std::vector<const Launch::Place*> Instances::in_turn(const Launch& launch,
                                                     const std::string& type) const {
  static const Launch::Place kAnywhere;
  if (launch.places.empty()) return {&kAnywhere};
  const auto has_room = [&](const Launch::Place* place) {
    const auto found = full_.find({type, place->zone});
    return found == full_.end() || found->second.until <= client_.world().clock.now();
  };
  std::vector<const Launch::Place*> places;
  for (const Launch::Place& place : launch.places) places.push_back(&place);
  for (auto begin = places.begin(); begin != places.end();) {
    const auto end = std::find_if(begin, places.end(), [&](const Launch::Place* place) {
      return quota_of_place(*place) != quota_of_place(**begin);
    });
    std::stable_partition(begin, end, has_room);
    begin = end;
  }
  return places;
}

void Instances::note_full(const std::string& type, const std::string& zone) {
  Full& full = full_[{type, zone}];
  full.pause = full.pause.count() == 0 ? kFirstFull
                                       : std::min<std::chrono::seconds>(2 * full.pause, kLastFull);
  full.until = client_.world().clock.now() + full.pause;
}

std::variant<std::vector<Machine>, Instances::NoRoom> Instances::ask_at(
    const Request& request, const Launch& launch, const Launch::Place& place,
    const std::vector<NodeId>& nodes, const std::string& data) {
  Intent intent{random_hex(16),
                request.cluster,
                request.type,
                place.zone,
                request.launch,
                request.head,
                request.boot != nullptr,
                nodes,
                client_.world().clock.wall(),
                {}};
  Form form;
  flatten(config_of(launch, place, intent, data), spec::kRunInstances, "", form);
  intents_.write(intent);
  std::vector<std::pair<std::size_t, std::string>> made;  // number and id
  try {
    CallOptions options;  // what was just made for it may not be known yet
    options.again = [&](const std::string& code) {
      return launch.is_fresh &&
             (code == "InvalidGroup.NotFound" || code == "InvalidPlacementGroup.Unknown" ||
              code == "InvalidKeyPair.NotFound");
    };
    const Xml answer = client_.ec2("RunInstances", form, options);
    for (const Xml& instance : answer.list("instancesSet")) {
      const auto number = number_from<std::size_t>(instance.at("amiLaunchIndex"));
      made.emplace_back(number.value_or(made.size()), instance.at("instanceId"));
    }
  } catch (const ApiError& error) {
    // By its token a request that was done before would have been answered by what it has made.
    const bool is_quota = is_instance_quota(error.aws_code());
    const bool certain = !error.aws_code().empty() &&
                         (!error.may_be_done() || has_none(error.aws_code()) || is_quota);
    if (certain) {
      intents_.remove(intent.token);
    } else if (auto found = look_for(intent); !found.empty()) {
      return found;
    }  // else it may be there all the same: list() has it, and nobody asks again meanwhile
    // Where there are other instance types one's quota is not the end.
    const bool has_others = is_quota && place.config.contains("InstanceType");
    if (!has_none(error.aws_code()) && !has_others) {
      throw Error(error).while_doing("asking for " + std::to_string(nodes.size()) + " of " +
                                     printable(request.type, false) +
                                     (place.zone.empty() ? "" : " in " + place.zone));
    }
    const bool says_more = error.aws_code() == "Unsupported";
    return NoRoom{(place.zone.empty() ? "" : place.zone + ": ") +
                      (says_more ? error.message() : error.aws_code()),
                  error.hint(), is_quota};
  }
  std::sort(made.begin(), made.end());
  for (auto& [number, id] : made) intent.ids.push_back(std::move(id));
  intents_.write(intent);
  std::vector<Machine> machines;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    machines.push_back(awaited(intent, i));
    machines.back().reason = place.zone.empty() ? "" : "in " + place.zone;
  }
  return machines;
}

// What a request has made whose answer was lost.
std::vector<Machine> Instances::look_for(const Intent& intent) {
  for (int look = 0; look < kLooks; ++look) {
    try {
      std::vector<Machine> found;
      for (Seen& each : seen({{"Filter.1.Name", std::string("tag:") + kIntentTag},
                              {"Filter.1.Value.1", intent.token}})) {
        found.push_back(std::move(each.machine));
      }
      if (found.size() == intent.nodes.size()) return found;
    } catch (const Error&) {  // the next one knows
    }
    client_.world().pause(kFirstLook, {});
  }
  return {};
}

json Instances::config_of(const Launch& launch, const Launch::Place& place, const Intent& intent,
                          const std::string& data) const {
  json config = launch.config;
  config.merge_patch(place.config);
  config["MinCount"] = intent.nodes.size();
  config["MaxCount"] = intent.nodes.size();
  config["ClientToken"] = intent.token;
  config["UserData"] = data.empty() ? json() : json(ssh::encode_base64(data));
  Tags tags = tags_of(cluster_name_, awaited(intent, 0));
  tags[kIntentTag] = intent.token;
  if (intent.joins) tags[kJoinsTag] = "1";
  if (intent.nodes.size() > 1) {
    tags.erase("dtrain-node");
    for (std::size_t i = 0; i < intent.nodes.size(); ++i) {
      tags[kNumberedTag + std::to_string(i)] = intent.nodes[i].str();
    }
  }
  tags["Name"] = "dtrain-" + cluster_name_ +
                 (intent.nodes.size() == 1 ? "-" + intent.nodes.front().str() : "");
  // Beside the user's own, of which the same name is theirs to give but for ours.
  if (!config.contains("TagSpecifications")) config["TagSpecifications"] = json::array();
  for (const char* kind : {"instance", "volume"}) {
    json& all = config["TagSpecifications"];
    auto spec = std::find_if(all.begin(), all.end(), [&](const json& each) {
      return each.value("ResourceType", "") == kind;
    });
    if (spec == all.end()) spec = all.insert(all.end(), json{{"ResourceType", kind}});
    json given = json::array();
    std::set<std::string> named;
    for (const json& tag : spec->value("Tags", json::array())) {
      const std::string key = tag.value("Key", "");
      if (tags.contains(key) && key != "Name") continue;
      named.insert(key);
      given.push_back(tag);
    }
    for (const auto& [key, value] : tags) {
      if (!named.contains(key)) given.push_back({{"Key", key}, {"Value", value}});
    }
    if (spec->value("ResourceType", "") == "instance") {
      for (const auto& [key, value] : launch.tags) {
        given.push_back({{"Key", key}, {"Value", value}});
      }
    }
    (*spec)["Tags"] = given;
  }
  return config;
}

void Instances::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  std::vector<Machine> known;
  std::vector<Machine> unknown;
  for (const Machine& machine : machines) (machine.id.empty() ? unknown : known).push_back(machine);
  terminate(known, tell);
  // Their answers were lost: they show up, or never were.
  while (!unknown.empty()) {
    std::vector<Machine> shown;
    const std::vector<Machine> there = list();
    const Index index(there);
    std::erase_if(unknown, [&](Machine& each) {
      const Machine* found = index.find(each);
      if (found != nullptr && found->id.empty()) return false;
      if (found != nullptr) {
        shown.push_back(*found);
      } else {
        each.state = MachineState::gone;
        tell({each, std::nullopt});
      }
      return true;
    });
    terminate(shown, tell);
    if (!unknown.empty()) client_.world().pause(kFirstLook, {});
  }
}

// What was asked of a machine not long ago counts more than a list that does not have it yet.
void Instances::correct(Machine& machine) {
  const auto asked = asked_.find(machine.id);
  if (asked == asked_.end()) return;
  const bool starts = asked->second.state == MachineState::pending;
  const bool is_old = starts ? machine.state == MachineState::stopped : is_live(machine.state);
  if (!is_old || client_.world().clock.wall() > asked->second.until) {
    asked_.erase(asked);
    return;
  }
  machine.state = asked->second.state;
  machine.reason = starts ? "" : kStopsNow;
  if (starts) machine.created = asked->second.until - kStale;  // and not when it was made
}

void Instances::turn(const char* action, const std::vector<Machine>& machines, const char* again,
                     const std::function<void(const Turn&)>& done) {
  for (std::size_t begin = 0; begin < machines.size(); begin += kBatch) {
    const std::vector<Machine> some(
        machines.begin() + static_cast<std::ptrdiff_t>(begin),
        machines.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kBatch, machines.size())));
    const WallTime now = client_.world().clock.wall();
    const bool young = std::all_of(some.begin(), some.end(), [&](const Machine& machine) {
      return now - machine.created <= kUnseen;
    });
    CallOptions options;  // what was just made may not be known yet
    options.again = [young, again](const std::string& code) {
      return (young && code == kNotFound) || (again != nullptr && code == again);
    };
    if (again != nullptr) options.deadline = kUntilStopped;
    std::map<std::string, std::string> states;
    std::optional<ApiError> failed;
    try {
      Form form;
      for (std::size_t i = 0; i < some.size(); ++i) {
        form.emplace_back("InstanceId." + std::to_string(i + 1), some[i].id);
      }
      const Xml answer = client_.ec2(action, form, options);
      for (const Xml& each : answer.list("instancesSet")) {
        states[each.at("instanceId")] = each.at("currentState/name");
      }
    } catch (const ApiError& error) {
      failed = error;
    }
    // One that is not known, or protected, or has no room, keeps the others.
    if (failed && !failed->aws_code().empty() && some.size() > 1) {
      for (const Machine& machine : some) turn(action, {machine}, again, done);
      continue;
    }
    for (const Machine& machine : some) {
      done({machine, states[machine.id], failed ? &*failed : nullptr, young});
    }
  }
}

void Instances::terminate(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  turn("TerminateInstances", machines, nullptr, [&](const Turn& turned) {
    MachineOutcome outcome{turned.machine, std::nullopt};
    const bool unknown = turned.failed != nullptr && turned.failed->aws_code() == kNotFound;
    if (unknown && !turned.is_young) {
      outcome.machine.state = MachineState::gone;
    } else if (turned.failed != nullptr) {
      outcome.error = *turned.failed;
    } else {
      const bool is_gone = state_of(turned.state) == MachineState::gone;
      outcome.machine.state = is_gone ? MachineState::gone : MachineState::stopping;
    }
    tell(outcome);
  });
}

void Instances::stop(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  turn("StopInstances", machines, nullptr, [&](const Turn& turned) {
    MachineOutcome outcome{turned.machine, std::nullopt};
    if (turned.failed != nullptr) {
      outcome.error = Error(*turned.failed).while_doing("stopping " + turned.machine.id);
    } else {
      outcome.machine.state = MachineState::stopped;
      outcome.machine.reason = turned.state == "stopped" ? "" : kStopsNow;
      asked_[turned.machine.id] = {MachineState::stopped, client_.world().clock.wall() + kStale};
    }
    tell(outcome);
  });
}

// What it starts with: EC2 takes that of one that is stopped alone.
void Instances::prepare(const Machine& machine, const BootScript& boot) {
  Request request;
  request.type = machine.type;
  request.cluster = machine.cluster;
  request.launch = machine.launch;
  const Launch launch = launch_(request);
  const std::string data = packed(
      {{boot(machine.node)}, launch.settings, launch.config.value("UserData", ""), launch.user});
  CallOptions options;
  options.deadline = kUntilStopped;
  options.again = [](const std::string& code) { return code == kWrongState; };
  client_.ec2("ModifyInstanceAttribute",
              {{"InstanceId", machine.id}, {"UserData.Value", ssh::encode_base64(data)}}, options);
}

void Instances::start(const std::vector<Machine>& machines, const BootScript& boot,
                      const OutcomeSink& tell) {
  std::vector<Machine> ready;
  for (const Machine& machine : machines) {
    try {
      if (boot) prepare(machine, boot);
      ready.push_back(machine);
    } catch (const Error& error) {
      tell({machine, Error(error).while_doing("starting " + machine.id)});
    }
  }
  turn("StartInstances", ready, kWrongState, [&](const Turn& turned) {
    MachineOutcome outcome{turned.machine, std::nullopt};
    if (turned.failed != nullptr) {
      Error error = *turned.failed;
      if (has_none(turned.failed->aws_code())) {
        error =
            Error(ErrorCode::exhausted, "there is no room for it in " + turned.machine.zone +
                                            ", where its disk is: " + turned.failed->aws_code());
      }
      outcome.error = error.while_doing("starting " + turned.machine.id);
    } else {
      outcome.machine.state = state_of(turned.state);
      if (outcome.machine.state != MachineState::running) {
        outcome.machine.state = MachineState::pending;
      }
      outcome.machine.reason.clear();
      outcome.machine.created = client_.world().clock.wall();
      asked_[turned.machine.id] = {MachineState::pending, client_.world().clock.wall() + kStale};
    }
    tell(outcome);
  });
}

void Instances::follow(const std::vector<Machine>& machines, const OutcomeSink& tell,
                       const std::stop_token& stop) {
  std::vector<Machine> followed;
  for (const Machine& machine : machines) {
    if (machine.state == MachineState::pending || machine.state == MachineState::stopping) {
      followed.push_back(machine);
    }
  }
  const Clock& clock = client_.world().clock;
  const Monotonic begin = clock.now();
  std::chrono::seconds word = kFirstWord;
  milliseconds pause = kFirstLook;
  while (!followed.empty() && !stop.stop_requested()) {
    std::optional<Error> failed;
    std::vector<Machine> there;
    try {
      there = all(stop);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::internal) throw;
      failed = error;
    }
    const Index index(there);
    std::erase_if(followed, [&](Machine& each) {
      if (failed) return false;
      Machine now = each;
      if (const Machine* found = index.find(each)) {
        now = *found;
        now.node = each.node;  // its tags may not say it any more
      } else {
        now.state = MachineState::gone;
        now.reason = each.state == MachineState::pending ? "EC2 does not know it" : "";
      }
      const bool goes = each.state == MachineState::stopping;
      if (goes && now.state != MachineState::gone) now.state = MachineState::stopping;
      const bool changed =
          now.state != each.state || now.reason != each.reason || now.id != each.id;
      each = now;
      if (changed) tell({now, std::nullopt});
      return now.state != MachineState::pending && now.state != MachineState::stopping;
    });
    if (followed.empty() || stop.stop_requested()) return;
    const auto waited = clock.now() - begin;
    const bool is_over = waited >= kFollowed;
    if (is_over || waited >= word) {
      const std::string after =
          human_duration(waited) + (failed ? "; the last look failed: " + failed->message() : "");
      for (const Machine& each : followed) {
        Machine now = each;
        const std::string state = "EC2 says " + std::string(to_string(each.state)) + " since ";
        now.reason = kTakesLong + state + after;
        std::optional<Error> error;
        if (is_over) {
          error = Error(ErrorCode::timeout, "not waited for any longer: " + state + after);
          if (failed) error->with_hint(failed->hint());
        }
        tell({now, error});
      }
      if (is_over) return;
      word *= 2;
    }
    client_.world().pause(pause, stop);
    pause = std::min(kLastLook, pause + pause / 2);
  }
}

void Instances::give_back(const std::vector<Machine>& machines, const OutcomeSink& tell,
                          const std::stop_token& stop) {
  std::vector<Machine> stopping;
  release(machines, [&](const MachineOutcome& outcome) {
    tell(outcome);
    if (!outcome.error) stopping.push_back(outcome.machine);
  });
  follow(stopping, tell, stop);
}

}  // namespace dtrain::aws

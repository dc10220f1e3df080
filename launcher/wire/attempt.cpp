#include "launcher/wire/attempt.hpp"

#include <array>
#include <climits>
#include <cmath>
#include <string_view>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::wire {
namespace {

using nlohmann::json;

constexpr std::int64_t kIntMax = INT_MAX;
constexpr std::int64_t kMostMillis = INT64_MAX / 1000000;  // that WallTime holds: to the year 2262
constexpr std::int64_t kMostLease = std::int64_t{10} * 365 * 86400 * 1000;  // ten years
constexpr std::int64_t kExactMax = std::int64_t{1} << 53;  // what a JSON number holds everywhere

[[noreturn]] void wrong(const std::string& message) {
  throw Error(ErrorCode::invalid, message);
}

int int_of(const json& object, const char* key, std::int64_t min, std::int64_t max = kIntMax) {
  return static_cast<int>(get_int(object, key, min, max));
}

int int_of(const json& object, const char* key, std::int64_t min, std::int64_t max,
           std::int64_t fallback) {
  return static_cast<int>(get_int(object, key, min, max, fallback));
}

std::map<std::string, std::string> string_map(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_object()) wrong(std::string("\"") + key + "\" must be an object of strings");
  std::map<std::string, std::string> map;
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) {
      wrong(std::string("\"") + key + "\" must be an object of strings: " + name);
    }
    map.emplace(name, text.get<std::string>());
  }
  return map;
}

std::vector<int> int_list(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_array()) wrong(std::string("\"") + key + "\" must be a list of whole numbers");
  std::vector<int> numbers;
  for (const json& item : value) {
    // A negative or fractional item is neither a GPU nor a process.
    if (!item.is_number_unsigned() && !(item.is_number_integer() && item.get<std::int64_t>() >= 0))
      wrong(std::string("\"") + key + "\" must be a list of whole numbers from 0");
    const auto number = item.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(kIntMax)) {
      wrong(std::string("\"") + key + "\" holds a number that is too large");
    }
    numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

const json& object_member(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_object()) wrong(std::string("\"") + key + "\" must be an object");
  return value;
}

WallTime time_of(const json& object, const char* key) {
  return from_millis(get_int(object, key, 0, kMostMillis));
}

json exit_to_json(const ProcessExit& exit) {
  return {{"code", exit.code}, {"signal", exit.signal}};
}

ProcessExit exit_from_json(const json& object, const char* key) {
  const json& value = object_member(object, key);
  return {int_of(value, "code", 0), int_of(value, "signal", 0, 128)};
}

template <typename Enum, std::size_t N>
using Names = std::array<std::pair<Enum, const char*>, N>;

template <typename Enum, std::size_t N>
const char* name_of(const Names<Enum, N>& names, Enum value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) return name;
  }
  return names.front().second;
}

template <typename Enum, std::size_t N>
Enum value_of(const Names<Enum, N>& names, const json& object, const char* key) {
  const std::string found = get_string(object, key);
  std::string wanted;
  for (const auto& [value, name] : names) {
    if (found == name) return value;
    wanted += (wanted.empty() ? "" : ", ") + std::string(name);
  }
  wrong(std::string("\"") + key + "\" must be one of " + wanted + ", not " +
        printable(found.substr(0, 80), false));
}

constexpr Names<OnHeadLost, 2> kOnHeadLost{
    {{OnHeadLost::go_on, "continue"}, {OnHeadLost::stop, "stop"}}};
constexpr Names<NodeFinished::Outcome, 3> kOutcomes{
    {{NodeFinished::Outcome::succeeded, "succeeded"},
     {NodeFinished::Outcome::failed, "failed"},
     {NodeFinished::Outcome::stopped, "stopped"}}};

// ---- Events.

json body_to_json(const MasterReady& event) {
  return {{"type", "master_ready"}, {"port", event.port}};
}

json body_to_json(const SetupStarted&) {
  return {{"type", "setup_started"}};
}

json body_to_json(const RanksStarted& event) {
  json ranks = json::array();
  for (const auto& rank : event.ranks) ranks.push_back({{"rank", rank.rank}, {"pid", rank.pid}});
  return {{"type", "ranks_started"}, {"ranks", ranks}, {"time", to_millis(event.time)}};
}

json body_to_json(const RankReport& event) {
  return {{"type", "report"}, {"rank", event.rank}, {"body", event.body}};
}

json body_to_json(const AttemptWarning& event) {
  json body = {{"type", "warning"}, {"message", event.message}};
  if (event.rank) body["rank"] = *event.rank;
  return body;
}

json body_to_json(const RankExited& event) {
  json body = {{"type", "rank_exited"},
               {"rank", event.rank},
               {"exit", exit_to_json(event.exit)},
               {"time", to_millis(event.time)},
               {"stopped", event.stopped},
               {"error_message", event.error_message},
               {"error_time", event.error_time},
               {"last_lines", event.last_lines},
               {"address_in_use", event.address_in_use}};
  if (!event.cause.empty()) body["cause"] = event.cause;
  return body;
}

json body_to_json(const NodeFinished& event) {
  json body = {{"type", "finished"},
               {"outcome", name_of(kOutcomes, event.outcome)},
               {"reason", event.reason},
               {"unkillable", event.unkillable},
               {"dropped_bytes", event.dropped_bytes}};
  if (event.lasting) body["lasting"] = true;
  return body;
}

RanksStarted ranks_started(const json& object) {
  RanksStarted event;
  const json& ranks = member(object, "ranks");
  if (!ranks.is_array()) wrong("\"ranks\" must be a list");
  for (const json& rank : ranks) {
    event.ranks.push_back({int_of(rank, "rank", 0), int_of(rank, "pid", 1)});
  }
  event.time = time_of(object, "time");
  return event;
}

RankExited rank_exited(const json& object) {
  RankExited event;
  event.rank = int_of(object, "rank", 0);
  event.exit = exit_from_json(object, "exit");
  event.time = time_of(object, "time");
  event.stopped = get_bool(object, "stopped", false);
  event.cause = get_string(object, "cause", "");
  event.error_message = get_string(object, "error_message", "");
  event.error_time = get_number(object, "error_time", 0);
  event.last_lines = get_strings(object, "last_lines");
  event.address_in_use = get_bool(object, "address_in_use", false);
  return event;
}

NodeFinished node_finished(const json& object) {
  NodeFinished event;
  event.outcome = value_of(kOutcomes, object, "outcome");
  event.reason = get_string(object, "reason", "");
  event.lasting = get_bool(object, "lasting", false);
  for (const int pid : int_list(object, "unkillable")) event.unkillable.push_back(pid);
  event.dropped_bytes =
      static_cast<std::uint64_t>(get_int(object, "dropped_bytes", 0, INT64_MAX, 0));
  return event;
}

AttemptEventBody event_body(const std::string& type, const json& object) {
  if (type == "master_ready") return MasterReady{int_of(object, "port", 1, 65535)};
  if (type == "setup_started") return SetupStarted{};
  if (type == "ranks_started") return ranks_started(object);
  if (type == "report") return RankReport{int_of(object, "rank", 0), object_member(object, "body")};
  if (type == "warning") {
    AttemptWarning event;
    if (object.contains("rank")) event.rank = int_of(object, "rank", 0);
    event.message = get_string(object, "message");
    return event;
  }
  if (type == "rank_exited") return rank_exited(object);
  if (type == "finished") return node_finished(object);
  wrong("\"type\" is no event: " + printable(type.substr(0, 80), false));
}

std::uint64_t seq_of(const json& object) {
  return static_cast<std::uint64_t>(get_int(object, "seq", 1, kExactMax));
}

}  // namespace

nlohmann::json to_json(const AttemptSpec& spec) {
  json object = {{"version", spec.version},
                 {"cluster", spec.cluster.str()},
                 {"job", spec.job.str()},
                 {"job_name", spec.job_name},
                 {"attempt", spec.attempt},
                 {"node", spec.node.str()},
                 {"token", spec.token},
                 {"node_rank", spec.node_rank},
                 {"nnodes", spec.nnodes},
                 {"first_rank", spec.first_rank},
                 {"nproc", spec.nproc},
                 {"world_size", spec.world_size},
                 {"node_ips", spec.node_ips},
                 {"master_addr", spec.master_addr},
                 {"master_port", spec.master_port},
                 {"command", spec.command},
                 {"shell", spec.shell},
                 {"workdir", spec.workdir},
                 {"env", spec.env},
                 {"setup", spec.setup},
                 {"storage_path", spec.storage_path},
                 {"gpus", spec.gpus},
                 {"gpus_assigned", spec.gpus_assigned},
                 {"max_restarts", spec.max_restarts},
                 {"stop_grace_s", spec.stop_grace.count()},
                 {"on_head_lost", name_of(kOnHeadLost, spec.on_head_lost)},
                 {"lease_ms", spec.lease.count()}};
  if (spec.machine_ranks > 0) object["machine_ranks"] = spec.machine_ranks;
  if (spec.checkpoint) object["checkpoint"] = *spec.checkpoint;
  if (spec.content) object["content"] = to_json(*spec.content);
  if (spec.rank_memory > 0) object["rank_memory"] = spec.rank_memory;
  if (!spec.library_path.empty()) object["library_path"] = spec.library_path;
  return object;
}

AttemptSpec attempt_spec_from_json(const nlohmann::json& object) {
  AttemptSpec spec;
  spec.version = int_of(object, "version", 1);
  if (spec.version > kSuperviseVersion) {
    wrong("\"version\" " + std::to_string(spec.version) + " is newer than this supervisor's " +
          std::to_string(kSuperviseVersion));
  }
  spec.cluster = ClusterId(get_string(object, "cluster"));
  spec.job = JobId(get_string(object, "job"));
  if (!valid_name(spec.job.str())) wrong("\"job\" is not a name");
  spec.job_name = get_string(object, "job_name", "");
  spec.attempt = int_of(object, "attempt", 1);
  spec.node = NodeId(get_string(object, "node"));
  spec.token = get_string(object, "token");
  if (spec.token.empty()) wrong("\"token\" is empty");
  spec.node_rank = int_of(object, "node_rank", 0);
  spec.nnodes = int_of(object, "nnodes", 1);
  spec.first_rank = int_of(object, "first_rank", 0);
  spec.nproc = int_of(object, "nproc", 1, 65536);
  spec.world_size = int_of(object, "world_size", 1);
  spec.machine_ranks = int_of(object, "machine_ranks", 0, kIntMax, 0);
  spec.node_ips = get_strings(object, "node_ips");
  spec.master_addr = get_string(object, "master_addr");
  spec.master_port = int_of(object, "master_port", 0, 65535);
  spec.command = get_strings(object, "command");
  if (spec.command.empty()) wrong("\"command\" is empty");
  spec.shell = get_bool(object, "shell", false);
  spec.workdir = get_string(object, "workdir", "");
  spec.env = string_map(object, "env");
  spec.setup = get_string(object, "setup", "");
  spec.storage_path = get_string(object, "storage_path", "");
  if (object.contains("checkpoint")) spec.checkpoint = get_string(object, "checkpoint");
  spec.gpus = int_list(object, "gpus");
  spec.gpus_assigned = get_bool(object, "gpus_assigned", false);
  spec.max_restarts = int_of(object, "max_restarts", 0, kIntMax, 0);
  spec.stop_grace = std::chrono::seconds(get_int(object, "stop_grace_s", 0, kIntMax, 30));
  spec.on_head_lost = value_of(kOnHeadLost, object, "on_head_lost");
  spec.lease = std::chrono::milliseconds(get_int(object, "lease_ms", 1, kMostLease, 60000));
  if (object.contains("content")) {
    spec.content = job_content_from_json(object_member(object, "content"));
  }
  spec.rank_memory = static_cast<std::uint64_t>(get_int(object, "rank_memory", 0, INT64_MAX, 0));
  spec.library_path = get_string(object, "library_path", "");
  return spec;
}

nlohmann::json to_json(const AttemptEvent& event) {
  json object = std::visit([](const auto& body) { return body_to_json(body); }, event.body);
  object["seq"] = event.seq;
  return object;
}

AttemptEvent attempt_event_from_json(const nlohmann::json& object) {
  const std::string type = get_string(object, "type");
  return {seq_of(object), event_body(type, object)};
}

nlohmann::json to_json(const AttemptCommand& command) {
  if (const auto* ack = std::get_if<EventAck>(&command)) {
    json object = {{"type", "ack"}, {"seq", ack->seq}};
    if (ack->answer) object["answer"] = *ack->answer;
    return object;
  }
  if (const auto* stop = std::get_if<StopRanks>(&command)) {
    json object = {{"type", "stop"}, {"reason", stop->reason}};
    if (stop->grace) object["grace_s"] = stop->grace->count();
    return object;
  }
  return {{"type", "lease"}};
}

AttemptCommand attempt_command_from_json(const nlohmann::json& object) {
  const std::string type = get_string(object, "type");
  if (type == "ack") {
    EventAck ack{seq_of(object), std::nullopt};
    if (object.contains("answer")) ack.answer = object_member(object, "answer");
    return ack;
  }
  if (type == "stop") {
    StopRanks stop;
    if (object.contains("grace_s")) {
      stop.grace = std::chrono::seconds(get_int(object, "grace_s", 0, kIntMax));
    }
    stop.reason = get_string(object, "reason", "");
    return stop;
  }
  if (type == "lease") return RenewLease{};
  wrong("\"type\" is no command: " + printable(type.substr(0, 80), false));
}

}  // namespace dtrain::wire

#include "launcher/wire/node.hpp"

#include <climits>

#include "launcher/wire/json.hpp"

namespace dtrain::wire {
namespace {

using nlohmann::json;

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

json attempts_to_json(const std::vector<std::pair<JobId, int>>& attempts) {
  json list = json::array();
  for (const auto& [job, attempt] : attempts) {
    list.push_back({{"job", job.str()}, {"attempt", attempt}});
  }
  return list;
}

JobId job_of(const json& object) {
  JobId job(get_string(object, "job"));
  if (!valid_name(job.str())) throw Error(ErrorCode::invalid, "\"job\" is no job id");
  return job;
}

int attempt_of(const json& object) {
  return static_cast<int>(get_int(object, "attempt", 1, INT_MAX));
}

const json& list_of(const json& object, const char* key) {
  const json& list = member(object, key);
  if (!list.is_array()) throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is no list");
  return list;
}

json maybe_error(const std::optional<Error>& error) {
  return error ? error_to_json(*error) : json::object();
}

std::optional<Error> maybe_error_from(const json& object) {
  if (!object.contains("error")) return std::nullopt;
  return error_from_json(object);
}

NodeId node_of(const json& object) {
  NodeId node(get_string(object, "node"));
  if (!valid_name(node.str())) throw Error(ErrorCode::invalid, "\"node\" is no node");
  return node;
}

int port_of(const json& object) {
  return static_cast<int>(get_int(object, "port", 0, 65535));
}

std::chrono::milliseconds limit_of(const json& object) {
  return std::chrono::milliseconds(get_int(object, "limit_ms", 1, 600000));
}

json hello_to_json(const Hello& m) {
  json object = {{"type", "hello"},
                 {"version", m.version},
                 {"features", m.features},
                 {"cluster", m.cluster.str()},
                 {"node", m.node.str()},
                 {"agent_version", m.agent_version},
                 {"address", m.address},
                 {"boot_id", m.boot_id},
                 {"machine", m.machine},
                 {"root", m.root},
                 {"log", m.log},
                 {"cpus", m.cpus},
                 {"gpus", m.gpus},
                 {"memory", m.memory},
                 {"attempts", attempts_to_json(m.attempts)}};
  if (!m.glibc.empty()) object["glibc"] = m.glibc;
  for (const JobId& job : m.jobs) object["jobs"].push_back(job.str());
  if (!m.interface.empty()) object["interface"] = m.interface;
  if (!m.interfaces.empty()) {
    json list = json::array();
    for (const Interface& each : m.interfaces) {
      list.push_back({{"name", each.name}, {"address", each.address}});
    }
    object["interfaces"] = std::move(list);
  }
  return object;
}

json dial_to_json(const DialPairs& m) {
  json targets = json::array();
  for (const DialPairs::Target& each : m.targets) {
    targets.push_back({{"node", each.node.str()},
                       {"address", each.address},
                       {"port", each.port},
                       {"token", each.token}});
  }
  return {{"type", "dial_pairs"},
          {"test", m.test},
          {"limit_ms", m.limit.count()},
          {"targets", std::move(targets)}};
}

json prepare_to_json(const PrepareAttempt& m) {
  json object = {{"type", "prepare"},
                 {"job", m.job.str()},
                 {"attempt", m.attempt},
                 {"token_file", m.token_file},
                 {"token", m.token}};
  if (m.checkpoint) object["checkpoint"] = *m.checkpoint;
  return object;
}

std::uint64_t count_of(const json& object, const char* key) {
  return static_cast<std::uint64_t>(get_int(object, key, 0, INT64_MAX));
}

[[noreturn]] void unknown(const std::string& type) {
  throw Error(ErrorCode::invalid, "unknown message \"" + type + "\"");
}

Hello hello_from(const json& object) {
  Hello hello;
  hello.version = static_cast<int>(get_int(object, "version", 0, INT_MAX));
  hello.features = get_strings(object, "features");
  hello.cluster = ClusterId(get_string(object, "cluster"));
  hello.node = NodeId(get_string(object, "node"));
  hello.agent_version = get_string(object, "agent_version");
  hello.address = get_string(object, "address");
  hello.interface = get_string(object, "interface", "");
  if (object.contains("interfaces")) {
    for (const json& item : list_of(object, "interfaces")) {
      hello.interfaces.push_back({get_string(item, "name"), get_string(item, "address")});
    }
  }
  hello.boot_id = get_string(object, "boot_id");
  hello.machine = get_string(object, "machine");
  hello.root = get_string(object, "root");
  hello.log = get_string(object, "log");
  hello.cpus = static_cast<int>(get_int(object, "cpus", 1, 65536));
  hello.gpus = static_cast<int>(get_int(object, "gpus", 0, 1024));
  hello.memory = static_cast<std::uint64_t>(get_int(object, "memory", 0, INT64_MAX));
  for (const json& item : list_of(object, "attempts")) {
    hello.attempts.emplace_back(job_of(item), attempt_of(item));
  }
  hello.glibc = get_string(object, "glibc", "");
  if (object.contains("jobs")) {
    for (const std::string& job : get_strings(object, "jobs")) hello.jobs.emplace_back(job);
  }
  return hello;
}

}  // namespace

json to_json(const NodeMessage& message) {
  return std::visit(
      Overloaded{
          [](const Hello& m) -> json { return hello_to_json(m); },
          [](const Heartbeat&) -> json {
            return {{"type", "heartbeat"}};
          },
          [](const FromSupervisor& m) -> json {
            return {{"type", "event"},
                    {"job", m.job.str()},
                    {"attempt", m.attempt},
                    {"event", to_json(m.event)}};
          },
          [](const SupervisorLost& m) -> json {
            return {{"type", "supervisor_lost"},
                    {"job", m.job.str()},
                    {"attempt", m.attempt},
                    {"reason", m.reason},
                    {"unkillable", m.unkillable}};
          },
          [](const StartFailed& m) -> json {
            json object = error_to_json(m.error);
            object["type"] = "start_failed";
            object["job"] = m.job.str();
            object["attempt"] = m.attempt;
            return object;
          },
          [](const AttemptPrepared& m) -> json {
            json object = maybe_error(m.error);
            object["type"] = "prepared";
            object["job"] = m.job.str();
            object["attempt"] = m.attempt;
            return object;
          },
          [](const PairOpened& m) -> json {
            json object = maybe_error(m.error);
            object["type"] = "pair_opened";
            object["test"] = m.test;
            object["port"] = m.port;
            return object;
          },
          [](const PairResult& m) -> json {
            json failures = json::array();
            for (const PairResult::Failure& each : m.failures) {
              failures.push_back({{"node", each.node.str()},
                                  {"address", each.address},
                                  {"port", each.port},
                                  {"reason", each.reason}});
            }
            return {{"type", "pair_result"}, {"test", m.test}, {"failures", std::move(failures)}};
          },
          [](const RenewCertificate& m) -> json {
            return {{"type", "renew"}, {"request", m.request}};
          },
          [](const Staging& m) -> json {
            return {{"type", "staging"}, {"job", m.job.str()}, {"attempt", m.attempt},
                    {"done", m.done},    {"total", m.total},   {"ready", m.ready}};
          }},
      message);
}

NodeMessage node_message_from_json(const json& object) {
  const std::string type = get_string(object, "type");
  if (type == "hello") return hello_from(object);
  if (type == "heartbeat") return Heartbeat{};
  if (type == "event") {
    return FromSupervisor{job_of(object), attempt_of(object),
                          attempt_event_from_json(member(object, "event"))};
  }
  if (type == "supervisor_lost") {
    SupervisorLost lost{job_of(object), attempt_of(object), get_string(object, "reason"), {}};
    for (const json& pid : list_of(object, "unkillable")) {
      if (!pid.is_number_integer()) throw Error(ErrorCode::invalid, "\"unkillable\" is no pid");
      lost.unkillable.push_back(pid.get<pid_t>());
    }
    return lost;
  }
  if (type == "start_failed") {
    return StartFailed{job_of(object), attempt_of(object), error_from_json(object)};
  }
  if (type == "prepared") {
    return AttemptPrepared{job_of(object), attempt_of(object), maybe_error_from(object)};
  }
  if (type == "pair_opened") {
    return PairOpened{get_string(object, "test"), port_of(object), maybe_error_from(object)};
  }
  if (type == "pair_result") {
    PairResult result{get_string(object, "test"), {}};
    for (const json& item : list_of(object, "failures")) {
      result.failures.push_back(
          {node_of(item), get_string(item, "address"), port_of(item), get_string(item, "reason")});
    }
    return result;
  }
  if (type == "renew") return RenewCertificate{get_string(object, "request")};
  if (type == "staging") {
    return Staging{job_of(object), attempt_of(object), count_of(object, "done"),
                   count_of(object, "total"), get_bool(object, "ready", false)};
  }
  unknown(type);
}

json to_json(const HeadMessage& message) {
  return std::visit(
      Overloaded{[](const Welcome& m) -> json {
                   json object = {{"type", "welcome"},
                                  {"version", m.version},
                                  {"features", m.features},
                                  {"heartbeat_ms", m.heartbeat.count()}};
                   if (m.mirror) object["mirror"] = true;
                   return object;
                 },
                 [](const Refused& m) -> json {
                   json object = error_to_json(m.error);
                   object["type"] = "refused";
                   return object;
                 },
                 [](const Heartbeat&) -> json {
                   return {{"type", "heartbeat"}};
                 },
                 [](const StartAttempt& m) -> json {
                   return {{"type", "start"}, {"spec", to_json(m.spec)}, {"secrets", m.secrets}};
                 },
                 [](const ToSupervisor& m) -> json {
                   return {{"type", "command"},
                           {"job", m.job.str()},
                           {"attempt", m.attempt},
                           {"command", to_json(m.command)}};
                 },
                 [](const ForgetJob& m) -> json {
                   return {{"type", "forget"}, {"job", m.job.str()}};
                 },
                 [](const Shutdown&) -> json {
                   return {{"type", "shutdown"}};
                 },
                 [](const PrepareAttempt& m) -> json { return prepare_to_json(m); },
                 [](const OpenPair& m) -> json {
                   return {{"type", "open_pair"},
                           {"test", m.test},
                           {"token", m.token},
                           {"limit_ms", m.limit.count()}};
                 },
                 [](const DialPairs& m) -> json { return dial_to_json(m); },
                 [](const ClosePair& m) -> json {
                   return {{"type", "close_pair"}, {"test", m.test}};
                 },
                 [](const NewCertificate& m) -> json {
                   return {{"type", "certificate"}, {"certificates", m.certificates}};
                 },
                 [](const Stage& m) -> json {
                   return {{"type", "stage"},
                           {"job", m.job.str()},
                           {"attempt", m.attempt},
                           {"content", to_json(m.content)}};
                 },
                 [](const Unstage& m) -> json {
                   return {{"type", "unstage"}, {"job", m.job.str()}, {"attempt", m.attempt}};
                 }},
      message);
}

HeadMessage head_message_from_json(const json& object) {
  const std::string type = get_string(object, "type");
  if (type == "welcome") {
    return Welcome{static_cast<int>(get_int(object, "version", 0, INT_MAX)),
                   get_strings(object, "features"),
                   std::chrono::milliseconds(get_int(object, "heartbeat_ms", 10, 600000)),
                   get_bool(object, "mirror", false)};
  }
  if (type == "refused") return Refused{error_from_json(object)};
  if (type == "heartbeat") return Heartbeat{};
  if (type == "start") {
    StartAttempt start{attempt_spec_from_json(member(object, "spec")), {}};
    const json& secrets = member(object, "secrets");
    if (!secrets.is_object()) throw Error(ErrorCode::invalid, "\"secrets\" is no object");
    for (const auto& [name, value] : secrets.items()) {
      if (!value.is_string()) throw Error(ErrorCode::invalid, "a secret is no string");
      start.secrets[name] = value.get<std::string>();
    }
    return start;
  }
  if (type == "command") {
    return ToSupervisor{job_of(object), attempt_of(object),
                        attempt_command_from_json(member(object, "command"))};
  }
  if (type == "forget") return ForgetJob{job_of(object)};
  if (type == "shutdown") return Shutdown{};
  if (type == "stage") {
    return Stage{job_of(object), attempt_of(object),
                 job_content_from_json(member(object, "content"))};
  }
  if (type == "unstage") return Unstage{job_of(object), attempt_of(object)};
  if (type == "prepare") {
    PrepareAttempt prepare{job_of(object), attempt_of(object), std::nullopt,
                           get_string(object, "token_file"), get_string(object, "token")};
    if (object.contains("checkpoint")) {
      prepare.checkpoint = static_cast<int>(get_int(object, "checkpoint", 0, INT_MAX));
    }
    return prepare;
  }
  if (type == "open_pair") {
    return OpenPair{get_string(object, "test"), get_string(object, "token"), limit_of(object)};
  }
  if (type == "dial_pairs") {
    DialPairs dial{get_string(object, "test"), {}, limit_of(object)};
    for (const json& item : list_of(object, "targets")) {
      dial.targets.push_back(
          {node_of(item), get_string(item, "address"), port_of(item), get_string(item, "token")});
    }
    return dial;
  }
  if (type == "close_pair") return ClosePair{get_string(object, "test")};
  if (type == "certificate") return NewCertificate{get_string(object, "certificates")};
  unknown(type);
}

json to_json(const ContentMessage& message) {
  return std::visit(
      Overloaded{
          [](const ContentHello& m) -> json {
            return {
                {"type", "hello"}, {"job", m.job.str()}, {"attempt", m.attempt}, {"zstd", m.zstd}};
          },
          [](const ContentGrant& m) -> json {
            return {{"type", "grant"}, {"content", to_json(m.content)}};
          },
          [](const ContentWant& m) -> json {
            json blobs = json::array();
            for (const ContentWant::Blob& blob : m.blobs) {
              blobs.push_back({{"sha256", blob.sha256}, {"offset", blob.offset}});
            }
            return {{"type", "want"}, {"blobs", std::move(blobs)}};
          },
          [](const ContentStream& m) -> json {
            return {{"type", "stream"}, {"bytes", m.bytes}};
          },
          [](const ContentEnd&) -> json {
            return {{"type", "end"}};
          },
          [](const ContentRefused& m) -> json {
            json object = error_to_json(m.error);
            object["type"] = "refused";
            return object;
          }},
      message);
}

ContentMessage content_message_from_json(const json& object) {
  const std::string type = get_string(object, "type");
  if (type == "hello") {
    return ContentHello{job_of(object), attempt_of(object), get_bool(object, "zstd", false)};
  }
  if (type == "grant") return ContentGrant{job_content_from_json(member(object, "content"))};
  if (type == "want") {
    ContentWant want;
    for (const json& blob : list_of(object, "blobs")) {
      if (want.blobs.size() == kWantLimit) throw Error(ErrorCode::invalid, "too many \"blobs\"");
      want.blobs.push_back({get_string(blob, "sha256"), count_of(blob, "offset")});
    }
    return want;
  }
  if (type == "stream") return ContentStream{count_of(object, "bytes")};
  if (type == "end") return ContentEnd{};
  if (type == "refused") return ContentRefused{error_from_json(object)};
  unknown(type);
}

}  // namespace dtrain::wire

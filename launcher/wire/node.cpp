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

std::size_t bytes_of(const json& object, std::size_t limit) {
  return static_cast<std::size_t>(get_int(object, "bytes", 0, static_cast<std::int64_t>(limit)));
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
  return hello;
}

StartExec exec_from(const json& object) {
  StartExec start;
  start.exec = get_string(object, "exec");
  start.command = get_strings(object, "command");
  start.shell = get_bool(object, "shell", false);
  start.tty = get_bool(object, "tty", false);
  start.rows = static_cast<int>(get_int(object, "rows", 1, 10000, 24));
  start.cols = static_cast<int>(get_int(object, "cols", 1, 10000, 80));
  start.term = get_string(object, "term", "");
  start.workdir = get_string(object, "workdir", "");
  return start;
}

}  // namespace

json to_json(const NodeMessage& message) {
  return std::visit(Overloaded{[](const Hello& m) -> json {
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
                                 return object;
                               },
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
                               [](const Staging& m) -> json {
                                 return {{"type", "staging"},    {"job", m.job.str()},
                                         {"attempt", m.attempt}, {"done", m.done},
                                         {"total", m.total},     {"ready", m.ready}};
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
  if (type == "staging") {
    return Staging{job_of(object), attempt_of(object), count_of(object, "done"),
                   count_of(object, "total"), get_bool(object, "ready", false)};
  }
  unknown(type);
}

json to_json(const HeadMessage& message) {
  return std::visit(
      Overloaded{[](const Welcome& m) -> json {
                   return {{"type", "welcome"},
                           {"version", m.version},
                           {"features", m.features},
                           {"heartbeat_ms", m.heartbeat.count()}};
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
                   std::chrono::milliseconds(get_int(object, "heartbeat_ms", 10, 600000))};
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
  unknown(type);
}

json to_json(const BulkMessage& message) {
  return std::visit(
      Overloaded{[](const BulkHello& m) -> json {
                   return {{"type", "hello"}, {"node", m.node.str()}};
                 },
                 [](const StartExec& m) -> json {
                   return {{"type", "exec"},   {"exec", m.exec}, {"command", m.command},
                           {"shell", m.shell}, {"tty", m.tty},   {"rows", m.rows},
                           {"cols", m.cols},   {"term", m.term}, {"workdir", m.workdir}};
                 },
                 [](const ExecOutput& m) -> json {
                   return {{"type", "output"},
                           {"exec", m.exec},
                           {"stream", m.error_stream ? "err" : "out"},
                           {"bytes", m.bytes}};
                 },
                 [](const ExecInput& m) -> json {
                   return {{"type", "input"}, {"exec", m.exec}, {"bytes", m.bytes}};
                 },
                 [](const ExecCredit& m) -> json {
                   return {{"type", "credit"}, {"exec", m.exec}, {"bytes", m.bytes}};
                 },
                 [](const ExecControl& m) -> json {
                   return {{"type", "control"}, {"exec", m.exec}, {"kind", m.kind},
                           {"rows", m.rows},    {"cols", m.cols}, {"signal", m.signal}};
                 },
                 [](const ExecExit& m) -> json {
                   json object = m.error ? error_to_json(*m.error) : json::object();
                   object["type"] = "exit";
                   object["exec"] = m.exec;
                   if (m.exit_code) object["exit_code"] = *m.exit_code;
                   return object;
                 }},
      message);
}

BulkMessage bulk_message_from_json(const json& object) {
  const std::string type = get_string(object, "type");
  if (type == "hello") return BulkHello{NodeId(get_string(object, "node"))};
  if (type == "exec") return exec_from(object);
  if (type == "output") {
    const std::string stream = get_string(object, "stream");
    if (stream != "out" && stream != "err") throw Error(ErrorCode::invalid, "no such stream");
    return ExecOutput{get_string(object, "exec"), stream == "err", bytes_of(object, kBulkFrame)};
  }
  if (type == "input") return ExecInput{get_string(object, "exec"), bytes_of(object, kBulkFrame)};
  if (type == "credit") {
    return ExecCredit{get_string(object, "exec"), bytes_of(object, kExecWindow)};
  }
  if (type == "control") {
    return ExecControl{get_string(object, "exec"), get_string(object, "kind"),
                       static_cast<int>(get_int(object, "rows", 0, 10000, 0)),
                       static_cast<int>(get_int(object, "cols", 0, 10000, 0)),
                       get_string(object, "signal", "")};
  }
  if (type == "exit") {
    ExecExit exit;
    exit.exec = get_string(object, "exec");
    if (object.contains("exit_code")) {
      exit.exit_code = static_cast<int>(get_int(object, "exit_code", 0, 255));
    }
    if (object.contains("error")) exit.error = error_from_json(object);
    return exit;
  }
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

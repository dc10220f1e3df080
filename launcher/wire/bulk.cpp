#include <climits>

#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

// The messages of the bulk connection.
namespace dtrain::wire {
namespace {

using nlohmann::json;

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

[[noreturn]] void unknown(const std::string& type) {
  throw Error(ErrorCode::invalid, "unknown message \"" + type + "\"");
}

const json& list_of(const json& object, const char* key) {
  const json& list = member(object, key);
  if (!list.is_array()) throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is no list");
  return list;
}

JobId job_of(const json& object) {
  JobId job(get_string(object, "job"));
  if (!valid_name(job.str())) throw Error(ErrorCode::invalid, "\"job\" is no job id");
  return job;
}

std::size_t bytes_of(const json& object, std::size_t limit) {
  return static_cast<std::size_t>(get_int(object, "bytes", 0, static_cast<std::int64_t>(limit)));
}

std::uint64_t count_of(const json& object, const char* key) {
  return static_cast<std::uint64_t>(get_int(object, key, 0, INT64_MAX));
}

std::uint64_t offset_of(const json& object) {
  return count_of(object, "offset");
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

json log_json(const char* type, const LogName& log) {
  return {{"type", type}, {"job", log.job.str()}, {"attempt", log.attempt}, {"file", log.file}};
}

json log_json(const char* type, const LogName& log, std::uint64_t offset) {
  json object = log_json(type, log);
  object["offset"] = offset;
  return object;
}

BulkMessage log_message(const std::string& type, const json& object) {
  LogName log{job_of(object), static_cast<int>(get_int(object, "attempt", 1, INT_MAX)),
              get_string(object, "file")};
  if (!is_log_file(log.file)) throw Error(ErrorCode::invalid, "\"file\" is no log's name");
  if (type == "log_open") return LogOpen{std::move(log)};
  if (type == "log_from") return LogFrom{std::move(log), offset_of(object)};
  if (type == "log")
    return LogData{std::move(log), offset_of(object), bytes_of(object, kBulkFrame)};
  if (type == "log_taken") return LogTaken{std::move(log), offset_of(object)};
  if (type == "log_refused") return LogRefused{std::move(log)};
  unknown(type);
}

ShardAsk shard_from(const json& object) {
  ShardAsk ask;
  ask.transfer = get_string(object, "transfer");
  ask.job = job_of(object);
  ask.path = get_string(object, "path");
  ask.shard = static_cast<int>(get_int(object, "shard", 0, INT_MAX));
  ask.shards = static_cast<int>(get_int(object, "shards", 1, INT_MAX));
  ask.step = get_int(object, "step", 0, INT64_MAX);
  ask.keep = get_bool(object, "keep", false);
  ask.forbidden = get_strings(object, "forbidden");
  ask.storage = get_string(object, "storage", "");
  return ask;
}

BulkMessage tree_message(const std::string& type, const json& object) {
  if (type == "shard_ask") return shard_from(object);
  std::string transfer = get_string(object, "transfer");
  const auto file = [&] { return static_cast<std::size_t>(get_int(object, "file", 0, INT_MAX)); };
  if (type == "checkpoint_ask") {
    return CheckpointAsk{std::move(transfer), job_of(object),
                         static_cast<int>(get_int(object, "number", 0, INT_MAX))};
  }
  if (type == "tree_files") {
    return TreeFiles{std::move(transfer), file_entries_from_json(member(object, "files"))};
  }
  if (type == "tree_go") return TreeGo{std::move(transfer), file(), offset_of(object)};
  if (type == "tree") {
    return TreeData{std::move(transfer), file(), offset_of(object), bytes_of(object, kBulkFrame)};
  }
  if (type == "tree_credit") return TreeCredit{std::move(transfer), bytes_of(object, kTreeWindow)};
  if (type == "tree_end") {
    TreeEnd end{std::move(transfer), std::nullopt};
    if (object.contains("error")) end.error = error_from_json(object);
    return end;
  }
  unknown(type);
}

}  // namespace

namespace {

json collected_to_json(const Collected& m) {
  json items = json::array();
  for (const Collected::Item& each : m.items) {
    items.push_back({{"kind", each.kind}, {"count", each.count}, {"bytes", each.bytes}});
  }
  json object = m.error ? error_to_json(*m.error) : json::object();
  object["type"] = "collected";
  object["request"] = m.request;
  object["items"] = std::move(items);
  object["disk_total"] = m.disk_total;
  object["disk_free"] = m.disk_free;
  return object;
}

Collected collected_from(const json& object) {
  Collected collected;
  collected.request = get_string(object, "request");
  for (const json& item : list_of(object, "items")) {
    collected.items.push_back(
        {get_string(item, "kind"), count_of(item, "count"), count_of(item, "bytes")});
  }
  collected.disk_total = count_of(object, "disk_total");
  collected.disk_free = count_of(object, "disk_free");
  if (object.contains("error")) collected.error = error_from_json(object);
  return collected;
}

}  // namespace

json to_json(const BulkMessage& message) {
  return std::visit(
      Overloaded{
          [](const BulkHello& m) -> json {
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
          },
          [](const StartForward& m) -> json {
            return {{"type", "forward"}, {"exec", m.exec}, {"port", m.port}};
          },
          [](const LogOpen& m) { return log_json("log_open", m.log); },
          [](const LogFrom& m) { return log_json("log_from", m.log, m.offset); },
          [](const LogData& m) {
            json object = log_json("log", m.log, m.offset);
            object["bytes"] = m.bytes;
            return object;
          },
          [](const LogTaken& m) { return log_json("log_taken", m.log, m.offset); },
          [](const LogRefused& m) { return log_json("log_refused", m.log); },
          [](const ShardAsk& m) -> json {
            json object = {
                {"type", "shard_ask"}, {"transfer", m.transfer}, {"job", m.job.str()},
                {"path", m.path},      {"shard", m.shard},       {"shards", m.shards},
                {"step", m.step},      {"keep", m.keep},         {"forbidden", m.forbidden}};
            if (!m.storage.empty()) object["storage"] = m.storage;
            return object;
          },
          [](const CheckpointAsk& m) -> json {
            return {{"type", "checkpoint_ask"},
                    {"transfer", m.transfer},
                    {"job", m.job.str()},
                    {"number", m.number}};
          },
          [](const TreeFiles& m) -> json {
            return {{"type", "tree_files"},
                    {"transfer", m.transfer},
                    {"files", dtrain::to_json(m.files)}};
          },
          [](const TreeGo& m) -> json {
            return {{"type", "tree_go"},
                    {"transfer", m.transfer},
                    {"file", m.file},
                    {"offset", m.offset}};
          },
          [](const TreeData& m) -> json {
            return {{"type", "tree"},
                    {"transfer", m.transfer},
                    {"file", m.file},
                    {"offset", m.offset},
                    {"bytes", m.bytes}};
          },
          [](const TreeCredit& m) -> json {
            return {{"type", "tree_credit"}, {"transfer", m.transfer}, {"bytes", m.bytes}};
          },
          [](const TreeEnd& m) -> json {
            json object = m.error ? error_to_json(*m.error) : json::object();
            object["type"] = "tree_end";
            object["transfer"] = m.transfer;
            return object;
          },
          [](const SetupAsk& m) -> json {
            return {{"type", "setup_ask"}, {"request", m.request}};
          },
          [](const SetupLogs& m) -> json {
            json logs = json::array();
            for (const SetupLogs::Log& each : m.logs) {
              logs.push_back({{"name", each.name}, {"text", each.text}});
            }
            return {{"type", "setup_logs"}, {"request", m.request}, {"logs", std::move(logs)}};
          },
          [](const CollectAsk& m) -> json {
            json object{{"type", "collect"},
                        {"request", m.request},
                        {"dry_run", m.dry_run},
                        {"asked", m.asked}};
            if (m.cache_size) object["cache_size"] = *m.cache_size;
            return object;
          },
          [](const Collected& m) -> json { return collected_to_json(m); }},
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
  if (type == "forward") {
    return StartForward{get_string(object, "exec"),
                        static_cast<int>(get_int(object, "port", 1, 65535))};
  }
  if (type.starts_with("log")) return log_message(type, object);
  if (type.starts_with("tree") || type == "shard_ask" || type == "checkpoint_ask") {
    return tree_message(type, object);
  }
  if (type == "setup_ask") return SetupAsk{get_string(object, "request")};
  if (type == "setup_logs") {
    SetupLogs setup{get_string(object, "request"), {}};
    for (const json& item : list_of(object, "logs")) {
      setup.logs.push_back({get_string(item, "name"), get_string(item, "text")});
    }
    return setup;
  }
  if (type == "collect") {
    CollectAsk ask;
    ask.request = get_string(object, "request");
    ask.dry_run = get_bool(object, "dry_run", false);
    ask.asked = get_bool(object, "asked", false);
    if (object.contains("cache_size")) ask.cache_size = count_of(object, "cache_size");
    return ask;
  }
  if (type == "collected") return collected_from(object);
  unknown(type);
}

bool carries_bytes(const BulkMessage& message) {
  return std::holds_alternative<ExecOutput>(message) ||
         std::holds_alternative<ExecInput>(message) || std::holds_alternative<LogData>(message) ||
         std::holds_alternative<TreeData>(message);
}

bool is_log_file(const std::string& name) {
  if (name == "setup.log" || name == "supervise.log") return true;
  constexpr std::size_t kMostDigits = 7;
  const std::size_t digits = name.find_first_not_of("0123456789");
  if (digits == std::string::npos || digits == 0 || digits > kMostDigits) return false;
  if (digits > 1 && name[0] == '0') return false;
  return name.substr(digits) == ".out" || name.substr(digits) == ".err";
}

}  // namespace dtrain::wire

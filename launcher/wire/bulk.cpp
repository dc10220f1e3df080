#include "launcher/wire/fields.hpp"
#include "launcher/wire/node.hpp"

#include <algorithm>
#include <iterator>

// The messages of the bulk connection.
namespace dtrain::wire {

using nlohmann::json;

void fields(Is<BulkHello> auto& m, auto&& f) {
  f("node", any_id(m.node));
}

// ---- Commands.

void fields(Is<StartExec> auto& m, auto&& f) {
  f("exec", m.exec, "command", m.command, "shell", or_default(m.shell), "tty", or_default(m.tty),
    "rows", or_default(m.rows, {1, 10000}), "cols", or_default(m.cols, {1, 10000}), "term",
    or_default(m.term), "workdir", or_default(m.workdir));
}
template <Is<ExecOutput> M>
void fields(M& m, auto&& f) {
  std::string stream = m.error_stream ? "err" : "out";
  f("exec", m.exec, "stream", stream, "bytes", within(m.bytes, 0, kBulkFrame));
  if (stream != "out" && stream != "err") throw Error(ErrorCode::invalid, "no such \"stream\"");
  if constexpr (!std::is_const_v<M>) m.error_stream = stream == "err";
}
void fields(Is<ExecInput> auto& m, auto&& f) {
  f("exec", m.exec, "bytes", within(m.bytes, 0, kBulkFrame));
}
void fields(Is<ExecCredit> auto& m, auto&& f) {
  f("exec", m.exec, "bytes", within(m.bytes, 0, kExecWindow));
}
void fields(Is<ExecControl> auto& m, auto&& f) {
  f("exec", m.exec, "kind", m.kind, "rows", or_default(m.rows, {0, 10000}), "cols",
    or_default(m.cols, {0, 10000}), "signal", or_default(m.signal));
}
void fields(Is<ExecExit> auto& m, auto&& f) {
  f("exec", m.exec, "exit_code", if_set(m.exit_code, {0, 255}), "error", if_set(m.error));
}
void fields(Is<StartForward> auto& m, auto&& f) {
  f("exec", m.exec, "port", within(m.port, 1, 65535));
}

// ---- Copies of logs: the log's name, and how much of it.

template <typename M>
requires requires(M& m) {
  m.log.file;
}
void fields(M& m, auto&& f) {
  f("job", m.log.job, "attempt", within(m.log.attempt, 1), "file", m.log.file);
  if (!std::is_const_v<M> && !is_log_file(m.log.file)) {
    throw Error(ErrorCode::invalid, "\"file\" is no log's name");
  }
  if constexpr (requires { m.offset; }) f("offset", m.offset);
  if constexpr (requires { m.released; }) f("released", if_set(m.released));
  if constexpr (requires { m.bytes; }) f("bytes", within(m.bytes, 0, kBulkFrame));
}

// ---- Shards, setup and collection.

void fields(Is<ShardAsk> auto& m, auto&& f) {
  f("transfer", m.transfer, "job", m.job, "path", m.path, "shard", m.shard, "shards",
    within(m.shards, 1), "step", within(m.step, 0, INT64_MAX), "keep", or_default(m.keep),
    "forbidden", m.forbidden, "storage", if_set(m.storage));
}
BOOST_DESCRIBE_STRUCT(SetupAsk, (), (request))
BOOST_DESCRIBE_STRUCT(SetupLogs::Log, (), (name, text))
BOOST_DESCRIBE_STRUCT(SetupLogs, (), (request, logs))
void fields(Is<CollectAsk> auto& m, auto&& f) {
  f("request", m.request, "dry_run", or_default(m.dry_run), "asked", or_default(m.asked),
    "cache_size", if_set(m.cache_size));
}
BOOST_DESCRIBE_STRUCT(Collected::Item, (), (kind, count, bytes))
void fields(Is<Collected> auto& m, auto&& f) {
  f("request", m.request, "items", m.items, "disk_total", m.disk_total, "disk_free", m.disk_free,
    "error", if_set(m.error));
}

// ---- The doctor's.

void fields(Is<DoctorAsk> auto& m, auto&& f) {
  f("request", m.request, "fix", or_default(m.fix), "jobs", m.jobs);
}
template <Is<DoctorReport::Finding> M>
void fields(M& m, auto&& f) {
  f("kind", m.kind, "severity", m.severity, "what", m.what, "hint", or_default(m.hint), "fixable",
    or_default(m.fixable), "fixed", or_default(m.fixed), "error", if_set(m.error));
}
void fields(Is<DoctorReport> auto& m, auto&& f) {
  f("request", m.request, "received", m.received, "sent", m.sent, "findings", m.findings, "looked",
    m.looked, "attempts", m.attempts, "running", m.running, "error", if_set(m.error));
}

namespace {

constexpr MessageNames<BulkMessage> kBulkMessages{
    "hello",     "exec",       "output",   "input",     "credit",    "control",     "exit",
    "forward",   "log_open",   "log_from", "log",       "log_taken", "log_refused", "shard_ask",
    "setup_ask", "setup_logs", "collect",  "collected", "doctor",    "findings"};

}  // namespace

json to_json(const BulkMessage& message) {
  return written_as("type", kBulkMessages, message);
}

BulkMessage bulk_message_from_json(const json& object) {
  return read_as<BulkMessage>("type", kBulkMessages, object, "unknown message ");
}

bool carries_bytes(const BulkMessage& message) {
  return std::holds_alternative<ExecOutput>(message) ||
         std::holds_alternative<ExecInput>(message) || std::holds_alternative<LogData>(message);
}

bool is_log_file(const std::string& name) {
  return std::ranges::find(kAttemptLogs, name) != std::end(kAttemptLogs) || is_rank_log(name);
}

bool is_rank_log(const std::string& name) {
  constexpr std::size_t kMostDigits = 7;
  const std::size_t digits = name.find_first_not_of("0123456789");
  if (digits == std::string::npos || digits == 0 || digits > kMostDigits) return false;
  if (digits > 1 && name[0] == '0') return false;
  return name.substr(digits) == ".out" || name.substr(digits) == ".err";
}

}  // namespace dtrain::wire

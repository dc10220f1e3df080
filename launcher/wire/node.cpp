#include "launcher/wire/node.hpp"

#include "launcher/spec/job_fields.hpp"
#include "launcher/wire/fields.hpp"

// The messages of the control and the content connection.
namespace dtrain::wire {

using nlohmann::json;

template <>
inline constexpr auto kReader<Preparation> = preparation_from_json;
template <>
inline constexpr auto kReader<AttemptSpec> = attempt_spec_from_json;
template <>
inline constexpr auto kReader<AttemptEvent> = attempt_event_from_json;
template <>
inline constexpr auto kReader<AttemptCommand> = attempt_command_from_json;
template <>
inline constexpr auto kReader<std::vector<FileEntry>> = file_entries_from_json;

// ---- Node to head.

BOOST_DESCRIBE_STRUCT(SlurmPlace, (), (job, node))
void fields(Is<Hello> auto& m, auto&& f) {
  f("version", m.version, "features", m.features, "cluster", any_id(m.cluster), "node",
    any_id(m.node), "agent_version", m.agent_version, "address", m.address, "interface",
    if_set(m.interface), "interfaces", if_set(m.interfaces), "boot_id", m.boot_id, "machine",
    m.machine, "root", m.root, "log", m.log, "cpus", within(m.cpus, 1, 65536), "gpus",
    within(m.gpus, 0, 1024), "memory", m.memory, "attempts", m.attempts, "glibc", if_set(m.glibc),
    "jobs", any_id(m.jobs, Presence::if_set), "leaving", if_set(m.leaving), "prepared",
    if_set(m.prepared), "slurm", if_set(m.slurm));
}
constexpr Rule kClockTime{0, kMostClockTime};
void fields(Is<Heartbeat> auto& m, auto&& f) {
  f("sent", if_set(m.sent, kClockTime), "echoed", if_set(m.echoed, kClockTime), "received",
    if_set(m.received, kClockTime), "wall", if_set(m.wall_ns, kClockTime));
}
void fields(Is<FromSupervisor> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "event", m.event);
}
void fields(Is<SupervisorLost> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "reason", m.reason, "unkillable", m.unkillable);
}
void fields(Is<StartFailed> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "error", m.error);
}
void fields(Is<AttemptPrepared> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "error", if_set(m.error));
}
void fields(Is<PairOpened> auto& m, auto&& f) {
  f("test", m.test, "port", within(m.port, 0, 65535), "error", if_set(m.error));
}
void fields(Is<PairResult::Failure> auto& m, auto&& f) {
  f("node", m.node, "address", m.address, "port", within(m.port, 0, 65535), "reason", m.reason);
}
BOOST_DESCRIBE_STRUCT(PairResult, (), (test, failures))
BOOST_DESCRIBE_STRUCT(RenewCertificate, (), (request))
void fields(Is<Staging> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "done", m.done, "total", m.total, "ready",
    or_default(m.ready));
}
void fields(Is<Leaving> auto& m, auto&& f) {
  f("reason", m.reason, "over", or_default(m.over));
}

void fields(Is<Preparing> auto& m, auto&& f) {
  f("key", m.key, "step", m.step, "text", m.text, "done", if_set(m.done), "error", if_set(m.error),
    "wanted", if_set(m.wanted));
}
void fields(Is<StacksTaken> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "at", m.at, "kept", m.kept, "error",
    if_set(m.error));
}

void fields(Is<LogsReleased> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "error", if_set(m.error));
}

// ---- Head to node.

void fields(Is<Welcome> auto& m, auto&& f) {
  f("version", m.version, "features", m.features, "heartbeat_ms", within(m.heartbeat, 10, 600000),
    "mirror", if_set(m.mirror), "provider", if_set(m.provider), "sent", if_set(m.sent, kClockTime));
}
BOOST_DESCRIBE_STRUCT(Refused, (), (error))
BOOST_DESCRIBE_STRUCT(StartAttempt, (), (spec, secrets))
void fields(Is<ToSupervisor> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "command", m.command);
}
BOOST_DESCRIBE_STRUCT(ForgetJob, (), (job))
void fields(Is<Shutdown> auto& m, auto&& f) {
  f("remove", if_set(m.remove));
}
void fields(Is<PrepareAttempt> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "checkpoint", if_set(m.checkpoint), "token_file",
    m.token_file, "token", m.token);
}
void fields(Is<OpenPair> auto& m, auto&& f) {
  f("test", m.test, "token", m.token, "limit_ms", within(m.limit, 1, 600000));
}
void fields(Is<DialPairs::Target> auto& m, auto&& f) {
  f("node", m.node, "address", m.address, "port", within(m.port, 0, 65535), "token", m.token);
}
void fields(Is<DialPairs> auto& m, auto&& f) {
  f("test", m.test, "targets", m.targets, "limit_ms", within(m.limit, 1, 600000));
}
BOOST_DESCRIBE_STRUCT(ClosePair, (), (test))
BOOST_DESCRIBE_STRUCT(NewCertificate, (), (certificates))
BOOST_DESCRIBE_STRUCT(PrepareNode, (), (key, preparation))
void fields(Is<Stage> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "content", m.content);
}
void fields(Is<Unstage> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1));
}
void fields(Is<TakeStacks> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "at", m.at, "reason", m.reason, "ranks", m.ranks,
    "profiler", or_default(m.profiler));
}

// ---- Content.

void fields(Is<ContentHello> auto& m, auto&& f) {
  f("job", m.job, "attempt", within(m.attempt, 1), "zstd", or_default(m.zstd), "elsewhere",
    if_set(m.elsewhere));
}
void fields(Is<PreparationHello> auto& m, auto&& f) {
  f("key", m.key, "zstd", or_default(m.zstd), "elsewhere", if_set(m.elsewhere));
}
BOOST_DESCRIBE_STRUCT(ContentGrant, (), (content))
BOOST_DESCRIBE_STRUCT(ContentWant::Blob, (), (sha256, offset))
BOOST_DESCRIBE_STRUCT(ContentWant, (), (blobs))
void fields(Is<ContentStream> auto& m, auto&& f) {
  f("bytes", m.bytes, "by_turn", if_set(m.by_turn));
}
BOOST_DESCRIBE_STRUCT(ContentEnd, (), ())
BOOST_DESCRIBE_STRUCT(ContentRefused, (), (error))
void fields(Is<CheckpointAsk> auto& m, auto&& f) {
  f("job", m.job, "number", m.number, "elsewhere", if_set(m.elsewhere));
}
BOOST_DESCRIBE_STRUCT(ContentFiles, (), (files))
void fields(Is<ContentElsewhere> auto& m, auto&& f) {
  f("node", m.node, "address", m.address, "port", within(m.port, 1, 65535), "token", m.token);
}
BOOST_DESCRIBE_STRUCT(ContentMissed, (), (why))
BOOST_DESCRIBE_STRUCT(ContentWhole, (), ())
BOOST_DESCRIBE_STRUCT(ContentWanted, (), (wanted))
BOOST_DESCRIBE_STRUCT(ContentForbidden, (), (node))
void fields(Is<ContentOffer> auto& m, auto&& f) {
  f("job", if_set(m.job), "attempt", if_set(m.attempt), "checkpoint", if_set(m.checkpoint), "port",
    within(m.port, 1, 65535), "token", m.token, "preparation", if_set(m.preparation));
}
void fields(Is<ShardOffer> auto& m, auto&& f) {
  f("transfer", m.transfer, "files", m.files, "error", if_set(m.error));
}

namespace {

constexpr MessageNames<NodeMessage> kNodeMessages{
    "hello",    "heartbeat",   "event",        "supervisor_lost", "start_failed",
    "prepared", "pair_opened", "pair_result",  "renew",           "staging",
    "leaving",  "preparing",   "stacks_taken", "logs_released"};
constexpr MessageNames<HeadMessage> kHeadMessages{
    "welcome",  "refused", "heartbeat",    "start",      "command",    "forget",
    "shutdown", "prepare", "open_pair",    "dial_pairs", "close_pair", "certificate",
    "stage",    "unstage", "prepare_node", "take_stacks"};
constexpr MessageNames<ContentMessage> kContentMessages{
    "hello", "grant",       "want",      "stream", "end",   "refused", "checkpoint", "files",
    "shard", "preparation", "elsewhere", "missed", "whole", "wanted",  "offer",      "forbidden"};
constexpr const char* kUnknown = "unknown message ";

}  // namespace

json to_json(const NodeMessage& message) {
  return written_as("type", kNodeMessages, message);
}

NodeMessage node_message_from_json(const json& object) {
  return read_as<NodeMessage>("type", kNodeMessages, object, kUnknown);
}

json to_json(const HeadMessage& message) {
  return written_as("type", kHeadMessages, message);
}

HeadMessage head_message_from_json(const json& object) {
  return read_as<HeadMessage>("type", kHeadMessages, object, kUnknown);
}

json to_json(const ContentMessage& message) {
  return written_as("type", kContentMessages, message);
}

ContentMessage content_message_from_json(const json& object) {
  ContentMessage message = read_as<ContentMessage>("type", kContentMessages, object, kUnknown);
  const auto* want = std::get_if<ContentWant>(&message);
  if (want != nullptr && want->blobs.size() > kWantLimit) {
    throw Error(ErrorCode::invalid, "too many \"blobs\"");
  }
  return message;
}

}  // namespace dtrain::wire

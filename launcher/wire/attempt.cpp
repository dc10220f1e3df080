#include "launcher/wire/attempt.hpp"

#include "launcher/spec/job_fields.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain {

void fields(wire::Is<ProcessExit> auto& m, auto&& f) {
  f("code", m.code, "signal", wire::within(m.signal, 0, 128));
}

}  // namespace dtrain

namespace dtrain::wire {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostLease = std::int64_t{10} * 365 * 86400 * 1000;  // ten years
constexpr std::int64_t kExactMax = std::int64_t{1} << 53;  // what a JSON number holds everywhere

[[noreturn]] void wrong(const std::string& message) {
  throw Error(ErrorCode::invalid, message);
}

}  // namespace

void fields(Is<SrunStep::Node> auto& m, auto&& f) {
  f("name", m.name, "nproc", within(m.nproc, 1, 65536));
}
BOOST_DESCRIBE_STRUCT(SrunStep, (), (job, nodes, secret))

void fields(Is<AttemptSpec> auto& m, auto&& f) {
  f("version", within(m.version, 1), "cluster", any_id(m.cluster), "job", m.job, "job_name",
    or_default(m.job_name), "attempt", within(m.attempt, 1), "node", any_id(m.node), "token",
    m.token, "node_rank", m.node_rank, "nnodes", within(m.nnodes, 1), "first_rank", m.first_rank,
    "nproc", within(m.nproc, 1, 65536), "world_size", within(m.world_size, 1), "machine_ranks",
    if_set(m.machine_ranks), "node_ips", m.node_ips, "master_addr", m.master_addr);
  f("master_port", within(m.master_port, 0, 65535), "command", m.command, "shell",
    or_default(m.shell), "workdir", or_default(m.workdir), "env", m.env, "setup",
    or_default(m.setup), "storage_path", or_default(m.storage_path), "checkpoint",
    if_set(m.checkpoint), "gpus", m.gpus, "gpus_assigned", or_default(m.gpus_assigned),
    "max_restarts", or_default(m.max_restarts), "stop_grace_s", or_default(m.stop_grace),
    "on_head_lost", m.on_head_lost, "lease_ms", or_default(m.lease, {1, kMostLease}), "content",
    if_set(m.content), "rank_memory", if_set(m.rank_memory), "library_path", if_set(m.library_path),
    "srun", if_set(m.srun), "beats", if_set(m.beats), "log_limit", if_set(m.log_limit), "rank_cpus",
    if_set(m.rank_cpus), "rank_threads", if_set(m.rank_threads));
}

BOOST_DESCRIBE_ENUM(NodeFinished::Outcome, succeeded, failed, stopped)

void fields(Is<MasterReady> auto& m, auto&& f) {
  f("port", within(m.port, 1, 65535));
}
BOOST_DESCRIBE_STRUCT(SetupStarted, (), ())
void fields(Is<RanksStarted::Rank> auto& m, auto&& f) {
  f("rank", m.rank, "pid", within(m.pid, 1));
}
BOOST_DESCRIBE_STRUCT(RanksStarted, (), (ranks, time))
BOOST_DESCRIBE_STRUCT(RankReport, (), (rank, body))
void fields(Is<RankBeat::Collective> auto& m, auto&& f) {
  f("sequence", within(m.sequence, 0, kExactMax), "name", if_set(m.name), "bytes", if_set(m.bytes),
    "entered", if_set(m.entered), "done", if_set(m.done));
}
void fields(Is<RankBeat::StepTimes> auto& m, auto&& f) {
  f("steps", within(m.steps, 0, kExactMax), "seconds", m.seconds, "data", if_set(m.data), "compute",
    if_set(m.compute), "communication", if_set(m.communication), "wait", if_set(m.wait), "p50",
    if_set(m.p50), "p90", if_set(m.p90), "max", if_set(m.max));
}
void fields(Is<RankBeat> auto& m, auto&& f) {
  f("rank", m.rank, "step", if_set(m.step), "phase", if_set(m.phase), "collective",
    if_set(m.collective), "step_times", if_set(m.step_times));
}
BOOST_DESCRIBE_STRUCT(RankBeats, (), (beats))
void fields(Is<AttemptWarning> auto& m, auto&& f) {
  f("rank", if_set(m.rank), "message", m.message);
}
void fields(Is<RankExited> auto& m, auto&& f) {
  f("rank", m.rank, "exit", m.exit, "time", m.time, "boot_time",
    if_set(m.boot_time, {0, INT64_MAX / 4}), "stopped", or_default(m.stopped), "cause",
    if_set(m.cause), "error_message", or_default(m.error_message), "error_time",
    or_default(m.error_time), "last_lines", m.last_lines, "address_in_use",
    or_default(m.address_in_use));
}
void fields(Is<NodeFinished> auto& m, auto&& f) {
  f("outcome", m.outcome, "reason", or_default(m.reason), "lasting", if_set(m.lasting),
    "unkillable", m.unkillable, "dropped_bytes", or_default(m.dropped_bytes));
}

void fields(Is<EventAck> auto& m, auto&& f) {
  f("seq", within(m.seq, 1, kExactMax), "answer", if_set(m.answer));
}
void fields(Is<StopRanks> auto& m, auto&& f) {
  f("grace_s", if_set(m.grace), "reason", or_default(m.reason));
}
BOOST_DESCRIBE_STRUCT(RenewLease, (), ())
void fields(Is<EventHeard> auto& m, auto&& f) {
  f("seq", within(m.seq, 1, kExactMax), "answer", if_set(m.answer));
}

namespace {

constexpr MessageNames<AttemptEventBody> kEvents{"master_ready", "setup_started", "ranks_started",
                                                 "report",       "warning",       "rank_exited",
                                                 "finished",     "beats"};
constexpr MessageNames<AttemptCommand> kCommands{"ack", "stop", "lease", "beats_heard"};

}  // namespace

nlohmann::json to_json(const AttemptSpec& spec) {
  return written(spec);
}

AttemptSpec attempt_spec_from_json(const nlohmann::json& object) {
  const std::int64_t version = get_int(object, "version", 1, INT_MAX);
  if (version > kSuperviseVersion) {
    wrong("\"version\" " + std::to_string(version) + " is newer than this supervisor's " +
          std::to_string(kSuperviseVersion));
  }
  AttemptSpec spec;
  read(object, spec);
  if (spec.token.empty()) wrong("\"token\" is empty");
  if (spec.command.empty()) wrong("\"command\" is empty");
  return spec;
}

nlohmann::json to_json(const AttemptEvent& event) {
  json object = written_as("type", kEvents, event.body);
  object["seq"] = event.seq;
  return object;
}

AttemptEvent attempt_event_from_json(const nlohmann::json& object) {
  AttemptEventBody body =
      read_as<AttemptEventBody>("type", kEvents, object, "\"type\" is no event: ");
  return {static_cast<std::uint64_t>(get_int(object, "seq", 1, kExactMax)), std::move(body)};
}

nlohmann::json to_json(const AttemptCommand& command) {
  return written_as("type", kCommands, command);
}

AttemptCommand attempt_command_from_json(const nlohmann::json& object) {
  return read_as<AttemptCommand>("type", kCommands, object, "\"type\" is no command: ");
}

}  // namespace dtrain::wire

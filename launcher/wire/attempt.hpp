#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/spec/job_spec.hpp"

// What head, node and supervisor say to each other about one attempt. The supervisor speaks JSON,
// one object a line, over its unix socket; the node passes its events on to the head, and the
// head's commands on to it, unchanged inside its own messages. A new node must drive an old
// supervisor: fields are only ever added, and unknown ones are ignored.
namespace dtrain::wire {

inline constexpr int kSuperviseVersion = 1;

// launcher: srun. The step of Slurm's whose tasks stand for the attempt's ranks, in their order.
struct SrunStep {
  struct Node {
    std::string name;  // Slurm's
    int nproc = 1;     // ranks there
  };
  std::string job;          // Slurm's, whose nodes these are
  std::vector<Node> nodes;  // by node rank
  std::string secret;       // of the attempt, the same on all nodes: who knows it belongs to it
};

// One node's share of an attempt: spec.json in the attempt's folder. Secrets travel beside it and
// lie in secrets.json, {NAME: VALUE}, 0600.
struct AttemptSpec {
  int version = kSuperviseVersion;
  ClusterId cluster;
  JobId job;
  std::string job_name;
  int attempt = 1;  // the epoch
  NodeId node;
  std::string token;  // DTRAIN_ATTEMPT_TOKEN

  int node_rank = 0;   // GROUP_RANK
  int nnodes = 1;      // GROUP_WORLD_SIZE
  int first_rank = 0;  // RANK of this node's LOCAL_RANK 0
  int nproc = 1;       // LOCAL_WORLD_SIZE
  int world_size = 1;
  int machine_ranks = 0;  // ranks of the attempt on this node's machine; 0: an older head
  std::vector<std::string> node_ips;  // by node rank
  std::string master_addr;            // node_ips[0], or 127.0.0.1 when all nodes are one machine
  int master_port = 0;                // 0 on node rank 0: choose one and say MasterReady

  std::vector<std::string> command;
  bool shell = false;
  std::string workdir;
  std::map<std::string, std::string> env;
  std::string setup;
  std::string storage_path;
  std::optional<std::string> checkpoint;
  std::vector<int> gpus;  // indices, for CUDA_VISIBLE_DEVICES; empty and gpus_assigned: none seen
  bool gpus_assigned = false;
  int max_restarts = 0;
  std::chrono::seconds stop_grace{30};
  OnHeadLost on_head_lost = OnHeadLost::go_on;
  std::chrono::milliseconds lease{60000};
  // What the node brings here before the ranks start; absent: the job runs in place. The supervisor
  // is told what has become of it: workdir and command are as they are on the node then.
  std::optional<JobContent> content;
  std::uint64_t rank_memory = 0;  // bytes that each rank may use; 0: as many as there are
  std::string library_path;       // in front of the ranks' LD_LIBRARY_PATH; empty: nothing
  std::optional<SrunStep> srun;   // absent: nobody else has a part in starting the ranks
  bool beats = false;             // node and head know RankBeats
  std::uint64_t log_limit = 0;    // bytes that are kept of each stream of a rank; 0: all
  int rank_cpus = 0;              // CPUs of each rank's own; 0: ranks are not bound
  int rank_threads = 0;           // OMP_NUM_THREADS; 0: 1 where a machine has several ranks
};

// ---- Supervisor to head, in order, each with a sequence number from 1. The supervisor keeps an
// event until it is acknowledged, and sends again what is not after each reconnect.

struct MasterReady {  // node rank 0 only, before its ranks are started
  int port = 0;
};
struct SetupStarted {};
struct RanksStarted {
  struct Rank {
    int rank = 0;
    pid_t pid = 0;
  };
  std::vector<Rank> ranks;
  WallTime time;
};
// A line from a rank that passed the checks of docs/rank_contract.md, whole.
struct RankReport {
  int rank = 0;
  nlohmann::json body;
};
// With AttemptSpec's beats, heartbeats come so: the newest of each rank that has sent one since the
// last event of this kind. Else each is a RankReport.
struct RankBeat {
  struct Collective {
    std::uint64_t sequence = 0;          // how many this rank has begun
    std::string name;                    // "all_reduce"; empty: not said
    std::optional<std::uint64_t> bytes;  // of this rank's contribution
    std::optional<double> entered;       // seconds since 1970, on the rank's machine
    std::optional<bool> done;            // the rank has come out of it; absent: not known

    bool operator==(const Collective&) const = default;
  };
  // Sums over all steps since the rank's process began, in seconds, so that what lies between two
  // beats is their difference, whichever were lost or joined on the way. Absent: not known.
  struct StepTimes {
    std::uint64_t steps = 0;  // that these are sums of
    double seconds = 0;       // what they took, all of the next four in it
    std::optional<double> data;
    std::optional<double> compute;
    std::optional<double> communication;  // moving data in collectives, without waiting
    std::optional<double> wait;           // for other ranks in collectives
    std::optional<double> p50;            // of single steps, the newest
    std::optional<double> p90;
    std::optional<double> max;

    bool operator==(const StepTimes&) const = default;
  };
  int rank = 0;
  std::optional<std::int64_t> step;
  std::string phase;  // what it is at: "data", "validation"; empty: not said
  std::optional<Collective> collective;
  std::optional<StepTimes> step_times{};

  bool operator==(const RankBeat&) const = default;
};
struct RankBeats {
  std::vector<RankBeat> beats;
};
struct AttemptWarning {
  std::optional<int> rank;
  std::string message;
};
struct RankExited {
  int rank = 0;
  ProcessExit exit;
  WallTime time;
  bool stopped = false;                 // it was told to stop before it ended
  std::string error_message;            // from TORCHELASTIC_ERROR_FILE, at most 16 KiB; empty: none
  double error_time = 0;                // its timestamp, seconds since 1970; 0: none
  std::vector<std::string> last_lines;  // of its stderr, else stdout: at most 20 lines of 500 bytes
  bool address_in_use = false;          // rank 0 failed and its last lines say so
  std::string cause;                    // what ended it, where more is known than its exit says
  // As `time`, by CLOCK_BOOTTIME of the rank's machine; zero: an older supervisor.
  std::chrono::nanoseconds boot_time{0};
  // One by want of memory begins so.
  static constexpr std::string_view kKilledForMemory = "killed for memory: ";
};
// The last event: no process of the attempt is left on this node, and all its output is on disk.
struct NodeFinished {
  enum class Outcome : std::uint8_t { succeeded, failed, stopped };
  Outcome outcome = Outcome::succeeded;
  std::string reason;               // a sentence; empty for succeeded
  std::vector<pid_t> unkillable;    // in state D: reported, not waited for
  std::uint64_t dropped_bytes = 0;  // of output, for want of disk
  bool lasting = false;             // it failed, and another attempt here would fail likewise
};

using AttemptEventBody = std::variant<MasterReady, SetupStarted, RanksStarted, RankReport,
                                      AttemptWarning, RankExited, NodeFinished, RankBeats>;
struct AttemptEvent {
  std::uint64_t seq = 0;
  AttemptEventBody body;
};

// ---- Head to supervisor.

// The event is durable (and all before it). For a report with "ack": true, `answer` is the line
// that the rank gets.
struct EventAck {
  std::uint64_t seq = 0;
  std::optional<nlohmann::json> answer;
};
struct StopRanks {
  std::optional<std::chrono::seconds> grace;  // absent: the spec's
  std::string reason;
};
struct RenewLease {};  // the head was heard: the lease runs from now

// This event is durable, or need not be, while one before it is still worked on: it is not sent
// again. `answer` as EventAck's, which may come again with that. On the wire it is "beats_heard":
// at first it was said of RankBeats alone, and a supervisor of then passes over others.
struct EventHeard {
  std::uint64_t seq = 0;
  std::optional<nlohmann::json> answer;
};

using AttemptCommand = std::variant<EventAck, StopRanks, RenewLease, EventHeard>;

// Each is an object with "type" (master_ready, setup_started, ranks_started, report, warning,
// rank_exited, finished, beats; ack, stop, lease, beats_heard), an event also with "seq". from_json
// throws Error(invalid) naming the field. An unknown type is Error(invalid) too.
nlohmann::json to_json(const AttemptSpec& spec);
AttemptSpec attempt_spec_from_json(const nlohmann::json& json);
nlohmann::json to_json(const AttemptEvent& event);
AttemptEvent attempt_event_from_json(const nlohmann::json& json);
nlohmann::json to_json(const AttemptCommand& command);
AttemptCommand attempt_command_from_json(const nlohmann::json& json);

// ---- Reports of ranks (docs/rank_contract.md).

inline constexpr std::size_t kReportLimit = 65536;  // bytes of a line, newline included

// Parses and checks one line without its newline. Throws Error(invalid) saying what is wrong, with
// at most 80 bytes of it quoted. Never more than bounded work: depth and counts are checked.
nlohmann::json parse_report(std::string_view line);

// What a report says of where its rank is: of a heartbeat all, of others the step. What is not as
// in the contract (an older supervisor lets it pass) is as if it were not there.
RankBeat beat_of(int rank, const nlohmann::json& report);

}  // namespace dtrain::wire

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/interface.hpp"
#include "launcher/wire/preparation.hpp"

// What head and node agent say to each other: JSON text frames of a WebSocket over mutual TLS. A
// node dials two connections: /v1/node/control for these messages, /v1/node/bulk for bytes of
// commands. Each begins with the node's Hello (bulk: the short form) and the head's Welcome. Fields
// are only ever added; a version that differs in its major part is refused plainly. What came after
// the first version is said only to a side that has named the feature: "mirror" (logs), "prepare"
// (PrepareAttempt), "pairs", "renew", "setup", "forward", "content" (Stage, Unstage,
// /v1/node/content), "shards" (ShardAsk, PrepareAttempt's checkpoint, /v1/node/checkpoint),
// "collect", "memory" (AttemptSpec's rank_memory), "leave" (Leaving), "preparation" (PrepareNode),
// "beats" (AttemptSpec's beats, RankBeats, EventHeard), "stacks" (TakeStacks), "doctor"
// (DoctorAsk), "log_limit" (AttemptSpec's log_limit, LogsReleased), "cpu_bind" (AttemptSpec's
// rank_cpus).
namespace dtrain::wire {

inline constexpr int kNodeVersion = 1;

inline const std::vector<std::string> kNodeFeatures{
    "mirror",  "prepare", "pairs",   "renew",     "setup",   "forward",
    "content", "shards",  "collect", "memory",    "leave",   "preparation",
    "beats",   "stacks",  "doctor",  "log_limit", "cpu_bind"};

// Where in Slurm a node is.
struct SlurmPlace {
  std::string job;   // its allocation
  std::string node;  // Slurm's name of the machine

  bool operator==(const SlurmPlace&) const = default;
};

// ---- Node to head, control.

// Of a heartbeat's times, in nanoseconds: sums and differences of them are numbers too.
inline constexpr std::int64_t kMostClockTime = INT64_MAX / 4;

struct Hello {
  int version = kNodeVersion;
  std::vector<std::string> features;
  ClusterId cluster;
  NodeId node;
  std::string agent_version;
  std::string address;
  std::string interface;              // that has `address`; empty: not known
  std::vector<Interface> interfaces;  // without loopback
  std::string boot_id;
  std::string machine;  // equal for nodes that share kernel, network and files
  std::string root;
  std::string log;
  int cpus = 1;
  int gpus = 0;
  std::uint64_t memory = 0;                     // bytes
  std::vector<std::pair<JobId, int>> attempts;  // with a supervisor, or a last event not yet acked
  std::string glibc;                            // of its machine, "2.36"; empty: none, or not known
  std::vector<JobId> jobs;                      // that have a folder there
  std::string leaving;                          // as Leaving's reason; empty: it stays
  std::string prepared;                         // the last Preparation's key; empty: none
  std::optional<SlurmPlace> slurm;              // it is in a step of Slurm's, and knows SrunStep
};
// Both ways; the head answers each, which renews the leases. From its times the head learns how far
// a node's clock is from its own: they are the sender's CLOCK_BOOTTIME, zero from an older agent.
struct Heartbeat {
  std::chrono::nanoseconds sent{0};
  // The node's only: `sent` of the head's newest message that had one, and when that came.
  std::chrono::nanoseconds echoed{0};
  std::chrono::nanoseconds received{0};
  std::int64_t wall_ns = 0;  // the node's time of the day, at `sent`; since 1970; 0: not known

  bool operator==(const Heartbeat&) const = default;
};
struct FromSupervisor {
  JobId job;
  int attempt = 0;
  AttemptEvent event;
};
struct SupervisorLost {
  JobId job;
  int attempt = 0;
  std::string reason;
  std::vector<pid_t> unkillable;
};
struct StartFailed {
  JobId job;
  int attempt = 0;
  Error error{ErrorCode::internal, ""};
};

// What PrepareAttempt asked for is there, or cannot be had.
struct AttemptPrepared {
  JobId job;
  int attempt = 0;
  std::optional<Error> error;
};
// The port that OpenPair asked for; or why there is none.
struct PairOpened {
  std::string test;
  int port = 0;
  std::optional<Error> error;
};
// The answer to DialPairs: those that could not be reached.
struct PairResult {
  struct Failure {
    NodeId node;
    std::string address;
    int port = 0;
    std::string reason;
  };
  std::string test;
  std::vector<Failure> failures;
};
// A request for exactly this node's name, for a key that it has made anew.
struct RenewCertificate {
  std::string request;  // PEM
};

// Feature "content". How far the node is with what Stage asked for, in bytes; when `ready` all of
// it is in place. What fails is StartFailed.
struct Staging {
  JobId job;
  int attempt = 0;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  bool ready = false;
};

// Feature "leave". The node is told to end: it starts nothing new, and what runs on it is ended
// there. When `over` nothing of the cluster runs on it any more, and nobody need wait for it; the
// head answers that with Shutdown. A repeat is harmless; a Hello without `leaving` takes it back.
struct Leaving {
  std::string reason;  // "its container was told to end (SIGTERM)"
  bool over = false;
};

// Feature "preparation". What the node is at, of what PrepareNode asked for; with `done` nothing is
// left, or it cannot go on because of `error`.
struct Preparing {
  std::string key;
  std::string step;  // "wait", "start", "files", "setup", "ready"
  std::string text;
  bool done = false;
  std::optional<Error> error;
  // Between a node's own processes: its files are here, and other nodes wait for them.
  bool wanted = false;
};

// Feature "stacks". What TakeStacks asked for is in the attempt's stacks.jsonl, of some rank at
// least when `kept`; and why not of all.
struct StacksTaken {
  JobId job;
  int attempt = 0;
  WallTime at;  // as TakeStacks said
  bool kept = false;
  std::optional<Error> error;
};

// Feature "log_limit". The oldest part of some log of the attempt was released on the node, and may
// be again; said once on each connection. With `error` that is not possible there, and they grow.
struct LogsReleased {
  JobId job;
  int attempt = 0;
  std::string error;
};

using NodeMessage = std::variant<Hello, Heartbeat, FromSupervisor, SupervisorLost, StartFailed,
                                 AttemptPrepared, PairOpened, PairResult, RenewCertificate, Staging,
                                 Leaving, Preparing, StacksTaken, LogsReleased>;

// ---- Head to node, control.

struct Welcome {
  int version = kNodeVersion;
  std::vector<std::string> features;
  std::chrono::milliseconds heartbeat{5000};
  bool mirror = false;   // the head reads no files of this node: it wants copies of its logs
  std::string provider;  // the cluster's: "aws"; empty: an older head
  std::chrono::nanoseconds sent{0};  // as Heartbeat's
};
struct Refused {
  Error error{ErrorCode::internal, ""};
};
struct StartAttempt {
  AttemptSpec spec;
  std::map<std::string, std::string> secrets;
};
struct ToSupervisor {
  JobId job;
  int attempt = 0;
  AttemptCommand command;
};
struct ForgetJob {
  JobId job;
};
// End, jobs are over. With `remove` nobody comes to clean up: what is there of the node goes too.
struct Shutdown {
  bool remove = false;
};
// Bring this attempt's content here; a repeat is harmless. StartAttempt does so by itself if need
// be, but then the ranks of other nodes wait for it.
struct Stage {
  JobId job;
  int attempt = 0;
  JobContent content;
};
// The attempt will not start here: what Stage began is given up.
struct Unstage {
  JobId job;
  int attempt = 0;
};

// Before StartAttempt: what must be on the node first. Answered by AttemptPrepared; a repeat is
// harmless.
struct PrepareAttempt {
  JobId job;
  int attempt = 0;
  std::optional<int> checkpoint;  // its number: to be at NodeRoot::checkpoint(), from the head
  // A file of the storage that all nodes must see, and what it holds; empty: nothing to look at.
  std::string token_file;
  std::string token;
};
// A port for a pair test: TLS, let in is who shows a certificate of the cluster and `token`.
struct OpenPair {
  std::string test;
  std::string token;
  std::chrono::milliseconds limit{5000};  // it closes then, whatever happens
};
struct DialPairs {
  struct Target {
    NodeId node;
    std::string address;
    int port = 0;
    std::string token;
  };
  std::string test;
  std::vector<Target> targets;
  std::chrono::milliseconds limit{3000};
};
struct ClosePair {
  std::string test;
};
struct NewCertificate {
  std::string certificates;  // the node's and the CA's, PEM
};

// Feature "preparation". Answered by Preparing, again and again; a repeat is harmless, and after an
// error tries again.
struct PrepareNode {
  std::string key;
  Preparation preparation;
};

// Feature "stacks". The native stacks of these ranks of the attempt, which are here, are to be kept
// with its logs. Answered by StacksTaken; another one of the same attempt takes its place.
struct TakeStacks {
  JobId job;
  int attempt = 0;
  WallTime at;         // by the head's clock; equal on all nodes
  std::string reason;  // "hang: no progress for 5 m 00 s: …"
  std::vector<int> ranks;
  std::string profiler;  // JobContent's profiler_tree; empty: the one beside the agent
};

using HeadMessage = std::variant<Welcome, Refused, Heartbeat, StartAttempt, ToSupervisor, ForgetJob,
                                 Shutdown, PrepareAttempt, OpenPair, DialPairs, ClosePair,
                                 NewCertificate, Stage, Unstage, PrepareNode, TakeStacks>;

// ---- Bulk, both ways: text frames; those that carry bytes are followed by one binary frame.

struct BulkHello {
  NodeId node;
};
struct StartExec {
  std::string exec;                  // names the command
  std::vector<std::string> command;  // empty: the login shell
  bool shell = false;
  bool tty = false;
  int rows = 24;
  int cols = 80;
  std::string term;
  std::string workdir;
};
struct ExecOutput {
  std::string exec;
  bool error_stream = false;
  std::size_t bytes = 0;
};
struct ExecInput {
  std::string exec;
  std::size_t bytes = 0;
};
// Both ways: so many bytes of output (to the node) or input (to the head) have been passed on, and
// so many more may come.
struct ExecCredit {
  std::string exec;
  std::size_t bytes = 0;
};
struct ExecControl {
  std::string exec;
  std::string kind;  // eof, resize, signal, hangup
  int rows = 0;
  int cols = 0;
  std::string signal;
};
struct ExecExit {
  std::string exec;
  std::optional<int> exit_code;
  std::optional<Error> error;
};

// A connection to 127.0.0.1:port on the node, `exec` naming it: from there on it is like a command
// whose stdin and stdout are the connection, with exit code 0 when it was closed in good order.
struct StartForward {
  std::string exec;
  int port = 0;
};

// Copies of logs. The node opens each file of an attempt; the head says how much of it it has; the
// node sends the rest as it grows, at most kLogWindow bytes ahead of what was taken. A LogFrom may
// come again at any time: send from there.
struct LogName {
  JobId job;
  int attempt = 0;
  std::string file;  // R.out, R.err or one of kAttemptLogs

  auto operator<=>(const LogName&) const = default;
};
struct LogOpen {
  LogName log;
};
struct LogFrom {
  LogName log;
  std::uint64_t offset = 0;
};
struct LogData {
  LogName log;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  bool released = false;  // what the head lacks before it is not there any more either
};
struct LogTaken {
  LogName log;
  std::uint64_t offset = 0;  // all before it is in the head's file
};
struct LogRefused {  // of a job that the head has forgotten
  LogName log;
};

// The folder of a shard on the node is to be offered to the head (ShardOffer). Said again after a
// new connection; a repeat is harmless.
struct ShardAsk {
  std::string transfer;
  JobId job;
  std::string path;
  int shard = 0;
  int shards = 1;
  std::int64_t step = 0;
  bool keep = false;                   // else it is removed once the head has it
  std::vector<std::string> forbidden;  // folders that must not lie in it
  // Of a storage that node and head share: what lies among its checkpoints is the head's to remove,
  // or not to be named at all. Empty: the node's own storage.
  std::string storage;
};

// What the node keeps of its own setup: the ends of setup/*.log.
struct SetupAsk {
  std::string request;
};
struct SetupLogs {
  struct Log {
    std::string name;  // of the list of commands
    std::string text;  // at most kSetupText bytes, the last ones
  };
  std::string request;
  std::vector<Log> logs;
};

// Feature "collect": content that no job needs any more is removed, or counted with `dry_run`.
// Answered by Collected.
struct CollectAsk {
  std::string request;
  bool dry_run = false;
  bool asked = false;                       // by a person: nothing stays for later
  std::optional<std::uint64_t> cache_size;  // bytes that may stay; absent: a part of the disk
  WallTime gathered;  // not sent: when what must stay was gathered, on this machine's clock
};
struct Collected {
  struct Item {
    std::string kind;  // for people
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  std::string request;
  std::vector<Item> items;
  std::uint64_t disk_total = 0;  // bytes, before; 0: not known
  std::uint64_t disk_free = 0;
  std::optional<Error> error;
};

// Feature "doctor": what is wrong on the node is looked for; with `fix`, what can be put right
// there is. Answered by DoctorReport.
struct DoctorAsk {
  std::string request;
  bool fix = false;
  std::vector<JobId> jobs;  // that are not over
};
struct DoctorReport {
  struct Finding {
    std::string kind;      // "processes", "sockets", "disk", …
    std::string severity;  // "problem" or "note"
    std::string what;      // one sentence, with the numbers
    std::string hint;      // what to do
    bool fixable = false;  // by `fix`
    bool fixed = false;
    std::string error;  // why it could not be fixed

    bool operator==(const Finding&) const = default;
  };
  std::string request;
  WallTime received;  // the ask, by the node's clock
  WallTime sent;      // this
  std::vector<Finding> findings;
  std::vector<std::string> looked;              // "/tmp: 12.3 GiB free": what is well
  std::vector<std::pair<JobId, int>> attempts;  // as Hello's
  std::vector<std::pair<JobId, int>> running;   // those of them of which something runs
  std::optional<Error> error;
};

using BulkMessage =
    std::variant<BulkHello, StartExec, ExecOutput, ExecInput, ExecCredit, ExecControl, ExecExit,
                 StartForward, LogOpen, LogFrom, LogData, LogTaken, LogRefused, ShardAsk, SetupAsk,
                 SetupLogs, CollectAsk, Collected, DoctorAsk, DoctorReport>;

// Whether a binary frame comes behind it.
bool carries_bytes(const BulkMessage& message);
// An attempt's logs on a node that are no rank's.
inline constexpr const char* kAttemptLogs[] = {"setup.log", "supervise.log", "stacks.jsonl"};
// "0.out", "12.err".
bool is_rank_log(const std::string& name);
// A name that a LogName may have: any of these.
bool is_log_file(const std::string& name);

inline constexpr std::size_t kLogWindow = std::size_t{512} << 10;
inline constexpr std::size_t kSetupText = std::size_t{256} << 10;

// ---- Content: bytes, on connections of their own. Who has some says what it is; who wants them
// asks for blobs by their sums, from where an earlier try ended; each ContentWant is answered with
// a ContentStream, binary frames that are one stream of launcher/files/blob_stream.hpp, and a
// ContentEnd. Instead of any answer may come a ContentRefused, and the end.
//
// /v1/node/content (feature "content"): of one attempt, to the node. Only what the attempt's trees
// name is given, and only to a node that the attempt was given to.
struct ContentHello {
  JobId job;
  int attempt = 0;
  bool zstd = false;
  bool elsewhere = false;  // a ContentElsewhere is understood
};
// Or what the head's Preparation of that key names, to a node that it was given to.
struct PreparationHello {
  std::string key;
  bool zstd = false;
  bool elsewhere = false;  // as ContentHello's
};
// Head to node: this is what the attempt has, or the preparation, as its workdir.
struct ContentGrant {
  JobContent content;
};
// /v1/node/checkpoint (feature "shards"): one folder of files. A committed checkpoint, to a node
// whose attempt goes on with it; answered by ContentFiles.
struct CheckpointAsk {
  JobId job;
  int number = 0;
  bool elsewhere = false;  // as ContentHello's
};
struct ContentFiles {
  std::vector<FileEntry> files;
};
// The head's other answer to a ContentWant, where many nodes want the same: that node has it, at
// /v1/relay/TOKEN, by TLS, and answers ContentWants as the head would, without zstd. What is not
// had from there is told by ContentMissed; the next want the head answers itself, when its turn has
// come.
struct ContentElsewhere {
  NodeId node;
  std::string address;
  int port = 0;
  std::string token;
};
struct ContentMissed {
  std::string why;
};
// To the head, after a want that was answered by turn: this node has all of it. Answered by
// ContentWanted: whether others wait for it, so that a ContentOffer is worth its connection.
struct ContentWhole {};
struct ContentWanted {
  bool wanted = false;
};
// Instead of a hello, on a connection of its own: this node gives the content of that attempt, or
// the job's checkpoint of that number, or without a job the content of that preparation, to those
// that come with the token. It holds until either side hangs up; the head may say meanwhile to whom
// nothing is given any more.
struct ContentOffer {
  JobId job;
  int attempt = 0;
  std::optional<int> checkpoint;
  int port = 0;
  std::string token;
  std::string preparation;  // its key
};
struct ContentForbidden {
  NodeId node;
};
// Or a shard, to the head, which has asked for it (ShardAsk): it is the head that sends
// ContentWants, and last a ContentEnd, when the shard is safe there. With `error` there is none.
struct ShardOffer {
  std::string transfer;
  std::vector<FileEntry> files;
  std::optional<Error> error;
};
struct ContentWant {
  struct Blob {
    std::string sha256;
    std::uint64_t offset = 0;  // bytes of it that are there
  };
  std::vector<Blob> blobs;
};
struct ContentStream {
  std::uint64_t bytes = 0;  // of blobs, that will come
  bool by_turn = false;     // others may want them too: ContentWhole is heard
};
struct ContentEnd {};
struct ContentRefused {
  Error error{ErrorCode::internal, ""};
};

using ContentMessage =
    std::variant<ContentHello, ContentGrant, ContentWant, ContentStream, ContentEnd, ContentRefused,
                 CheckpointAsk, ContentFiles, ShardOffer, PreparationHello, ContentElsewhere,
                 ContentMissed, ContentWhole, ContentWanted, ContentOffer, ContentForbidden>;

inline constexpr std::size_t kWantLimit = 20000;  // blobs of one ContentWant

inline constexpr std::size_t kExecWindow = std::size_t{256} << 10;  // bytes on their way
inline constexpr std::size_t kBulkFrame = std::size_t{64} << 10;    // bytes of a binary frame

nlohmann::json to_json(const NodeMessage& message);
NodeMessage node_message_from_json(const nlohmann::json& json);
nlohmann::json to_json(const HeadMessage& message);
HeadMessage head_message_from_json(const nlohmann::json& json);
nlohmann::json to_json(const BulkMessage& message);
BulkMessage bulk_message_from_json(const nlohmann::json& json);
nlohmann::json to_json(const ContentMessage& message);
ContentMessage content_message_from_json(const nlohmann::json& json);

}  // namespace dtrain::wire

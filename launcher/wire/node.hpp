#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/attempt.hpp"

// What head and node agent say to each other: JSON text frames of a WebSocket over mutual TLS. A
// node dials two connections: /v1/node/control for these messages, /v1/node/bulk for bytes of
// commands. Each begins with the node's Hello (bulk: the short form) and the head's Welcome. Fields
// are only ever added; a version that differs in its major part is refused plainly.
namespace dtrain::wire {

inline constexpr int kNodeVersion = 1;

// ---- Node to head, control.

struct Hello {
  int version = kNodeVersion;
  std::vector<std::string> features;
  ClusterId cluster;
  NodeId node;
  std::string agent_version;
  std::string address;
  std::string boot_id;
  std::string machine;  // equal for nodes that share kernel, network and files
  std::string root;
  std::string log;
  int cpus = 1;
  int gpus = 0;
  std::uint64_t memory = 0;                     // bytes
  std::vector<std::pair<JobId, int>> attempts;  // with a supervisor, or a last event not yet acked
  std::string glibc;                            // of its machine, "2.36"; empty: none, or not known
};
struct Heartbeat {};  // both ways; the head answers each, which renews the leases
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
  Error error;
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

using NodeMessage =
    std::variant<Hello, Heartbeat, FromSupervisor, SupervisorLost, StartFailed, Staging>;

// ---- Head to node, control.

struct Welcome {
  int version = kNodeVersion;
  std::vector<std::string> features;
  std::chrono::milliseconds heartbeat{5000};
};
struct Refused {
  Error error;
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
struct Shutdown {};  // end, jobs are over
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

using HeadMessage = std::variant<Welcome, Refused, Heartbeat, StartAttempt, ToSupervisor, ForgetJob,
                                 Shutdown, Stage, Unstage>;

// ---- Bulk, both ways: text frames, an ExecOutput or ExecInput followed by one binary frame.

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

using BulkMessage =
    std::variant<BulkHello, StartExec, ExecOutput, ExecInput, ExecCredit, ExecControl, ExecExit>;

// ---- Content, /v1/node/content (feature "content"): one connection for one attempt. The node says
// what it is for and which blobs it lacks; the head answers each ContentWant with a ContentStream,
// binary frames that are one stream of launcher/files/blob_stream.hpp, and a ContentEnd. Only what
// the attempt's trees name is given, and only to a node that the attempt was given to.

struct ContentHello {
  JobId job;
  int attempt = 0;
  bool zstd = false;
};
// Head to node: this is what the attempt has.
struct ContentGrant {
  JobContent content;
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
};
struct ContentEnd {};
struct ContentRefused {
  Error error;
};

using ContentMessage = std::variant<ContentHello, ContentGrant, ContentWant, ContentStream,
                                    ContentEnd, ContentRefused>;

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

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/interface.hpp"

// What `up` and `down` say to `dtrain-agent session` on a machine, and what it answers: frames of
// launcher/core/framed.hpp over the session's stdio. The agent speaks first, a SessionHello; then
// each request is one text frame, {"op": …}, and is answered by one, {"ok": …} or {"error": …}, in
// the order they came. SetupOutput alone has a frame of bytes behind it. Fields are only ever
// added. Times are milliseconds since 1970, sizes bytes.
namespace dtrain::wire {

inline constexpr int kSessionVersion = 1;
inline constexpr std::size_t kSetupChunk = std::size_t{256} << 10;  // bytes of one SetupOutput
inline constexpr std::size_t kTailLines = 50;                       // of a command that failed

// ---- The machine.

struct HostFacts {
  std::string user;
  std::int64_t uid = 0;
  std::string home;
  std::string shell;
  std::string arch;    // as uname -m
  std::string kernel;  // as uname -r
  std::string hostname;
  std::string boot_id;
  std::string machine;  // equal for logins that share kernel, network and files
  std::int64_t wall_ms = 0;
  std::int64_t home_free = 0;  // for this user; -1: not known
  std::int64_t tmp_free = 0;
  std::string home_filesystem;  // "ext4", "nfs", or the number that statfs gives, in hexadecimal
  bool home_on_network = false;
  std::string glibc;  // "2.36"; empty where there is none
  int cpus = 1;
  int gpus = 0;
  std::int64_t memory = 0;
  std::vector<Interface> interfaces;
  bool systemd = false;               // this machine was booted with it
  bool kills_user_processes = false;  // logind ends what a login leaves behind
  bool lingers = false;               // but for this user's own service manager
  std::string base;                   // where roots go unless `up` says otherwise
  bool operator==(const HostFacts&) const = default;
};

struct SessionHello {
  int version = kSessionVersion;
  std::vector<std::string> features;
  std::string agent_version;
  std::string agent;         // its path there
  std::string agent_sha256;  // of the file that runs
  HostFacts host;
};

// ---- Requests.

// This user's clusters whose head is on this machine: FoundClusters. `name` empty: all of them.
struct FindClusters {
  std::string name;
  std::string base;  // looked below as well; empty: none
};

struct SetupList {
  std::string list;  // its name: [a-z_]
  std::vector<std::string> commands;
};
// Names the node that all later requests are about: NodeFound. Changes nothing unless `prepare`,
// which makes root and key.
struct OpenNode {
  ClusterId cluster;
  NodeId node;
  std::string base;  // absolute or below ~/; empty: HostFacts::base
  bool prepare = false;
  bool head = false;             // whether the head is to run here too
  std::vector<SetupList> lists;  // NodeFound says what of them would run
};

struct InitHead {  // HeadFound
  std::string name;
  std::string provider;
  int expected_nodes = 1;
  int wanted_port = 0;
  bool ranks_on_head = true;
  bool moves = false;  // from machine to machine, its root on storage that all share
};
struct SignNode {  // on the head's machine: Text, the node's certificate and the CA's
  NodeId node;
  std::string request;
};
struct RevokeNode {  // on the head's machine: Done
  NodeId node;
};

// Each part that is not empty, in this order: Configured.
struct ConfigureNode {
  std::string certificates;                  // SignNode's text
  std::string node_config;                   // node.json's text
  bool capture_environment = false;          // of the login shell; takes up to 10 s
  std::map<std::string, std::string> marks;  // what the caller notes; an empty value forgets
};

// Runs the commands that differ from what has succeeded here, from the first one that does, in a
// process of its own: SetupStatus. While the same list runs already, that run; while another
// version of it runs, Error(conflict).
struct StartSetup {
  std::string list;
  std::vector<std::string> commands;
  std::map<std::string, std::string> env;
  bool from_start = false;  // whatever has succeeded
};
// Output of a run from `offset` on: SetupOutput. Answered as soon as there is some, or the run is
// over, else after `wait_ms`. Error(not_found) when `run` is not the list's last.
struct ReadSetup {
  std::string list;
  std::string run;
  std::int64_t offset = 0;
  std::int64_t wait_ms = 0;
};
struct CancelSetup {  // SetupStatus
  std::string list;
};

// The agents of the node, in this session's own binary: AgentsStarted. Those that run another, or
// other ones than asked, are replaced; supervisors and their ranks go on.
struct StartAgents {
  bool head = false;
  bool restart = false;  // also when nothing differs
  bool kept = false;     // what made the machine starts them, by NodeRoot::start()
};
// Ends watch, head and node, then what is left of supervisors, ranks and commands; SIGKILL for
// what has not ended after the grace: StopReport.
struct StopAgents {
  bool head = false;
  std::int64_t grace_ms = 10000;
  bool kept = false;  // as above: it is not to end with them
};
struct Survey {  // SurveyReport
  bool head = false;
};
// The node's files, sockets and unit; Error(conflict) while its processes live: RemoveReport.
struct RemoveFiles {
  bool head = false;
  bool keep_files = false;  // moved to BASE/kept/CLUSTER/, without keys
};
struct Persist {  // PersistReport
  bool on = false;
};
// Runs a command as setup commands are run: ProbeResult.
struct Probe {
  std::string command;
  std::map<std::string, std::string> env;
  std::int64_t limit_ms = 10000;
};
// The last lines of the agents' logs: LogTails.
struct ReadLogs {
  bool head = false;
  int lines = 10;
};

using SessionRequest = std::variant<FindClusters, OpenNode, InitHead, SignNode, RevokeNode,
                                    ConfigureNode, StartSetup, ReadSetup, CancelSetup, StartAgents,
                                    StopAgents, Survey, RemoveFiles, Persist, Probe, ReadLogs>;

// ---- Answers.

struct Done {};
struct Text {
  std::string text;
};

struct HeadFound {
  std::string root;
  std::string cluster;
  std::string name;
  std::string provider;
  int expected_nodes = 1;
  int wanted_port = 0;
  int port = 0;           // 0: never opened
  std::string ca_sha256;  // of the CA's certificate; equal on nodes whose certificate is its
};
struct FoundClusters {
  std::vector<HeadFound> clusters;
};

struct AgentProcess {
  std::string what;  // watch, head, node, supervise, setup, prepare, rank, exec
  std::int64_t pid = 0;
  std::string program;  // the file that runs, as the kernel names it
};

enum class SetupState : std::uint8_t {
  none,  // never run
  running,
  succeeded,
  failed,  // a command did
  cancelled,
  lost,  // its process ended without a word: a reboot, or SIGKILL
};
const char* to_string(SetupState state) noexcept;

struct SetupCommand {
  std::string command;
  std::string hash;  // of this command and all before it
  SetupState state = SetupState::none;
  int exit_code = 0;  // 128+n for a signal
  std::int64_t began_ms = 0;
  std::int64_t ended_ms = 0;
};
struct SetupStatus {
  std::string list;
  std::string run;  // names one run; empty: none
  SetupState state = SetupState::none;
  std::vector<SetupCommand> commands;
  int first = 0;                  // commands before it had succeeded earlier; == size: none ran
  std::vector<std::string> tail;  // of a run that failed: the failing command's last lines
};
// What became of a list that did not succeed, as an error: "setup command 2 of 3 ended with exit
// code 1: pip install x". Its last lines stay in the status.
Error setup_error(const SetupStatus& status);

struct SetupPlan {
  std::string list;
  int first = 0;  // the first command that would run; == total: none
  int total = 0;
  bool running = false;  // that very list runs now
};

struct NodeFound {
  std::string root;
  std::string head_root;
  bool there = false;           // the root existed before
  std::string config;           // node.json's text
  std::string request;          // with `prepare`: a certificate request
  std::int64_t expires_ms = 0;  // of the certificate; 0: none
  std::string ca_sha256;        // as in HeadFound
  bool environment = false;     // the login environment was captured
  std::map<std::string, std::string> marks;
  std::vector<SetupPlan> lists;
  std::vector<AgentProcess> agents;
  bool agents_current = false;  // StartAgents would find nothing to do
  std::string version;          // of the agents that were last brought; empty: not known
  bool persists = false;
  std::optional<HeadFound> head;
};

struct Configured {
  std::vector<std::string> changed;  // "certificates", "config", "environment", "marks"
  std::string warning;
};

struct SetupOutput {
  SetupStatus status;
  std::int64_t offset = 0;  // of the next byte
  std::int64_t bytes = 0;   // in the frame behind
};

struct AgentsStarted {
  bool changed = false;
  std::string how;  // "session", "scope", "unit": what keeps them when the login ends
  std::vector<AgentProcess> agents;
  std::string warning;
};
struct StopReport {
  std::vector<AgentProcess> found;
  std::vector<AgentProcess> killed;  // only SIGKILL ended these
  std::vector<AgentProcess> left;    // and nothing these
};
struct SurveyReport {
  std::vector<AgentProcess> processes;
  int sockets = 0;
  int port = 0;  // of the head; 0: none
  bool port_open = false;
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  int checkpoints = 0;  // committed, in the head's own storage
  std::int64_t checkpoint_bytes = 0;
  std::vector<std::string> checkpoint_jobs;
  std::string checkpoints_unknown;  // why they could not be counted; empty: they are
  std::int64_t uncommitted = 0;     // shards that no checkpoint holds yet, here
  bool unit = false;                // of systemd
  std::vector<std::string> paths;   // the folders that are there
};
struct RemoveReport {
  std::string kept;                  // with keep_files: where
  std::vector<std::string> left;     // "PATH: why"
  std::vector<std::string> changed;  // brought by file sync and changed since: they stay
};
struct PersistReport {
  bool on = false;
  std::string warning;  // what would keep it from working
};
struct ProbeResult {
  int exit_code = 0;
  bool timed_out = false;
  std::vector<std::string> tail;
  std::string out;  // its first 64 KiB
};
// Absent: it succeeded.
std::optional<Error> probe_error(const ProbeResult& result, const std::string& command,
                                 std::int64_t limit_ms);

struct LogTail {
  std::string path;
  std::vector<std::string> lines;
};
struct LogTails {
  std::vector<LogTail> logs;
};

// Strict readers: Error(invalid) that names the field. What a newer version adds is passed over.
nlohmann::json to_json(const SessionRequest& request);
SessionRequest session_request_from_json(const nlohmann::json& json);

// For SessionHello and every answer above.
template <typename Message>
nlohmann::json session_to_json(const Message& message);
template <typename Message>
Message session_from_json(const nlohmann::json& json);

}  // namespace dtrain::wire

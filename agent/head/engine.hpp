#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/node.hpp"

// What the head decides. The engine has no sockets: it is told what happened and says what is to be
// done. It runs on one thread, the head's main one; the store's thread calls back by `post`.
namespace dtrain::head {

class Store;

// What a node says of itself when it joins.
struct NodeInfo {
  NodeId node;
  std::string address;  // as other nodes reach it
  std::string boot_id;
  std::string machine;  // equal for nodes of one machine
  std::string version;
  std::string root;
  std::string log;
  int cpus = 1;
  int gpus = 0;
  std::uint64_t memory = 0;  // bytes
  std::string glibc;         // of its machine; empty: none, or not known
  // The attempts whose supervisor lives there, or whose last events are not acknowledged yet.
  std::vector<std::pair<JobId, int>> attempts;
};

// How the engine reaches nodes: the server has the real one, tests a fake. Sending to a node that
// is not connected is dropped; the engine asks again when the node joins.
class Nodes {
 public:
  virtual ~Nodes() = default;
  virtual void start(const NodeId& node, const wire::AttemptSpec& spec,
                     const std::map<std::string, std::string>& secrets) = 0;
  virtual void send(const NodeId& node, const JobId& job, int attempt,
                    const wire::AttemptCommand& command) = 0;
  // The job is forgotten: its folder on the node goes.
  virtual void forget(const NodeId& node, const JobId& job) = 0;
  // An attempt's content is to be brought there; answered by Engine::staging or start_failed.
  virtual void stage(const NodeId&, const wire::Stage&) {}
  virtual void unstage(const NodeId&, const JobId&, int) {}
};

// What a follower is told. Called on the engine's thread.
struct JobNews {
  JobId job;
  nlohmann::json frame;  // a text frame of docs/api.md: state, event, progress, metrics, end
};

struct EngineOptions {
  ClusterId cluster;
  std::string cluster_name;
  std::string provider;
  paths::HeadRoot root;
  int expected_nodes = 1;
  std::chrono::milliseconds lease{60000};
  std::chrono::milliseconds node_lost_after{30000};  // of silence
};

class Engine {
 public:
  // Opens the store and loads what it holds. `post` runs a function on the engine's thread later
  // and is called from any thread, until the engine's destructor returns; `timer` does so after a
  // delay, at most one is pending (a new one replaces it).
  struct Hooks {
    std::function<void(std::function<void()>)> post;
    std::function<void(std::chrono::milliseconds, std::function<void()>)> timer;
    std::function<void(const JobNews&)> news;
  };
  Engine(EngineOptions options, const Clock& clock, Nodes& nodes, Hooks hooks);
  // The same over a store that is open already; for tests.
  Engine(EngineOptions options, const Clock& clock, Nodes& nodes, Hooks hooks,
         std::unique_ptr<Store> store);
  ~Engine();

  // ---- From the API. Answers come through `done`, after what they say is durable; a refusal is
  // thrown as Error at once. What fails later, a disk that is full at submit, is the answer
  // {"error": {…}} of wire::error_to_json.
  using Answer = std::function<void(nlohmann::json)>;
  void submit(const std::string& submission_id, JobSpec spec,
              std::map<std::string, std::string> secrets, Answer done);
  nlohmann::json plan(const JobSpec& spec) const;  // dry_run
  // Error(conflict) when the nodes' systems are too old for the job's program.
  void check_content(const JobSpec& spec) const;
  nlohmann::json status() const;
  nlohmann::json jobs() const;
  nlohmann::json job(const JobId& id) const;          // Error(not_found)
  nlohmann::json job_metrics(const JobId& id) const;  // reads the store
  nlohmann::json job_events(const JobId& id) const;
  void stop(const JobId& id, std::optional<std::chrono::seconds> grace, Answer done);
  void remove(const JobId& id, Answer done);
  // Stops every job; `done` when none is left.
  void stop_all(Answer done);

  // Where the logs of a rank are and whether more may come; for the log readers.
  struct LogSource {
    int attempt = 1;
    int rank = 0;
    NodeId node;
    std::string node_root;  // of the node, as it said
    std::string machine;
  };
  std::vector<LogSource> logs(const JobId& id, std::optional<int> attempt) const;
  // Some attempt of the job may still write, or a new one may come.
  bool may_write(const JobId& id) const;
  // Number of the newest attempt, 0 before the first.
  int newest_attempt(const JobId& id) const;
  // Committed checkpoints as (folder, manifest), oldest first; for pull.
  std::vector<std::pair<fs::path, nlohmann::json>> checkpoints(const JobId& id) const;

  // ---- From the nodes.
  // The node is connected (again): its orphans are stopped, what it missed is sent again.
  void joined(const NodeInfo& info);
  void heard(const NodeId& node);  // any byte counts as life
  void gone(const NodeId& node);   // the connection closed
  void event(const NodeId& node, const JobId& job, int attempt, const wire::AttemptEvent& event);
  // The supervisor died without a last event; what carried its token has been killed, but for
  // `unkillable`.
  void supervisor_lost(const NodeId& node, const JobId& job, int attempt, const std::string& reason,
                       const std::vector<pid_t>& unkillable);
  // How far a node is with an attempt's content.
  void staging(const NodeId& node, const wire::Staging& news);
  // What the attempt is made of, if it is under way and has ranks on the node.
  std::optional<JobContent> content_for(const NodeId& node, const JobId& job, int attempt) const;
  // The node could not start the attempt at all.
  void start_failed(const NodeId& node, const JobId& job, int attempt, const Error& error);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::head

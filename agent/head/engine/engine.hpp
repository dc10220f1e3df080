#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/engine/growth.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/spec/storage_spec.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/node.hpp"
#include "launcher/wire/node_types.hpp"

namespace dtrain::tune {
struct SearchSpec;
}

// What the head decides. The engine has no sockets: it is told what happened and says what is to be
// done. It runs on one thread, the head's main one; the store's thread calls back by `post`.
namespace dtrain::head {

class Store;

// What a node says of itself when it joins.
struct NodeInfo {
  NodeId node;
  std::string address;       // as other nodes reach it
  std::string head_address;  // of the head, as this node has reached it; empty: not known
  std::vector<wire::Interface> interfaces;
  std::vector<std::string> features;
  std::string boot_id;
  std::string machine;  // equal for nodes of one machine
  std::string version;
  std::string root;
  std::string log;
  int cpus = 1;
  int gpus = 0;
  std::uint64_t memory = 0;  // bytes
  std::string glibc;         // of its machine; empty: none, or not known
  std::optional<wire::SlurmPlace> slurm;
  // The attempts whose supervisor lives there, or whose last events are not acknowledged yet.
  std::vector<std::pair<JobId, int>> attempts;
  std::vector<JobId> jobs;  // that have a folder there
  bool joined = false;      // by itself, as this type; the head's own word, not the node's
  std::string type;
  std::string leaving;    // why it is about to leave; empty: it stays
  std::string preparing;  // why it is not ready yet; empty: it is
};

// How the engine reaches nodes: the server has the real one, tests a fake. Sending to a node that
// is not connected is dropped; the engine asks again when the node joins.
class Nodes {
 public:
  virtual ~Nodes() = default;
  // False while no node can reach the head, through no fault of its own: silence says nothing then.
  virtual bool can_come() const { return true; }
  virtual void start(const NodeId& node, const wire::AttemptSpec& spec,
                     const std::map<std::string, std::string>& secrets) = 0;
  virtual void send(const NodeId& node, const JobId& job, int attempt,
                    const wire::AttemptCommand& command) = 0;
  // The job is forgotten: its folder on the node goes.
  virtual void forget(const NodeId& node, const JobId& job) = 0;

  // Answered by Engine::attempt_prepared.
  virtual void prepare(const NodeId& node, const wire::PrepareAttempt& what) = 0;
  // Whether each of these reaches the others; answered by Engine::pairs_checked, within seconds. A
  // new question about the same attempt takes the place of the one before.
  struct PairMember {
    NodeId node;
    std::string address;
  };
  virtual void check_pairs(const JobId& job, int attempt, std::vector<PairMember> members) = 0;
  struct BrokenPair {
    std::string words;  // a sentence
    std::set<NodeId> between;
  };
  // Brings the folder of `ask` (its transfer is given here) into `folder` on this machine, sums
  // verified. Goes on over new connections of the node until give_up(). Several at a time. Returns
  // its name for shard_taken().
  using Fetched = std::function<void(std::optional<Error>, std::vector<FileEntry>)>;
  virtual std::string fetch_shard(const NodeId& node, wire::ShardAsk ask, const fs::path& folder,
                                  Fetched done) = 0;
  // What was fetched is safe here, so that the node's own may go; or it was for nothing.
  virtual void shard_taken(const NodeId& node, const std::string& transfer,
                           const std::optional<Error>& error) = 0;
  // The node is lost, has left or was removed: nothing more is awaited from it.
  virtual void give_up(const NodeId& node) = 0;
  // The node leaves: from now on it is not let in. Once that is durable its connections end, and
  // `done` hears it; or what failed, and it stays. Not from within the call. `counted`: the cluster
  // is to have one node less.
  using Revoked = std::function<void(const std::optional<Error>&)>;
  virtual void revoke(const NodeId& node, bool counted, Revoked done) = 0;
  // It may come: nothing has revoked it. Throws Error(io) where that cannot be seen.
  virtual bool is_let_in(const NodeId&) const { return true; }

  // An attempt's content is to be brought there; answered by Engine::staging or start_failed.
  virtual void stage(const NodeId&, const wire::Stage&) {}
  virtual void unstage(const NodeId&, const JobId&, int) {}
  // Of a node with the feature "stacks"; answered by Engine::stacks_taken.
  virtual void take_stacks(const NodeId&, const wire::TakeStacks&) {}
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
  bool ranks_on_head = true;    // the head's own machine takes ranks
  std::string machine;          // the head's own; a node of another one has its logs copied here
  StorageSpec storage = {};     // what may be deleted without being asked
  bool shared_storage = false;  // StoreOptions::shared
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
    // Other machines are needed than before: expect_machines() says which.
    std::function<void()> needs = [] {};
    // StoreOptions::on_damage: the process is to end at once. On any thread.
    std::function<void(const std::string& why)> damaged = {};
  };
  Engine(const EngineOptions& options, const Clock& clock, Nodes& nodes, const Hooks& hooks);
  // The same over a store that is open already; for tests.
  Engine(EngineOptions options, const Clock& clock, Nodes& nodes, Hooks hooks,
         std::unique_ptr<Store> store);
  ~Engine();

  // ---- From the API. Answers come through `done`, after what they say is durable; a refusal is
  // thrown as Error at once. What fails later, a disk that is full at submit, is the answer
  // {"error": {…}} of wire::error_to_json.
  using Answer = std::function<void(nlohmann::json)>;
  void submit(const std::string& submission_id, JobSpec spec,
              const std::map<std::string, std::string>& secrets, Answer done);
  nlohmann::json plan(const JobSpec& spec) const;  // dry_run
  // Error(conflict) when the job could not run on the cluster as it is meant to be, even with
  // nothing else on it: nodes that are lost count with what they have, those that never came as
  // fitting.
  void check_fits(const JobSpec& spec) const;
  // Trees that must be in the content store before submit().
  std::vector<std::string> content_wanted(const JobSpec& spec) const;
  // Error(conflict) when the nodes' systems are too old for the job's program.
  void check_content(const JobSpec& spec) const;
  // `most_jobs`: not all jobs, but so many, first those that have ranks, then those that wait, then
  // those that have ended, the newest first.
  // Those that are trials of a search are not among them, unless `trials`.
  nlohmann::json status(std::optional<std::size_t> most_jobs = std::nullopt,
                        bool trials = false) const;
  // Sentences about the head's machine that a person should read.
  std::vector<std::string> warnings() const;
  nlohmann::json jobs() const;
  // Those that `reference` may mean, as a person names a job: by its id, else by its name or the
  // beginning of its id; empty: those that are no trials, or a trial where there are no others. Of
  // those that have ended, and of the others, the newest kMostMeant.
  nlohmann::json jobs_meant(const std::string& reference) const;
  static constexpr std::size_t kMostMeant = 1000;
  nlohmann::json job(const JobId& id) const;  // Error(not_found)
  // Its state, reason and exit_code alone, for who asks often. Error(not_found)
  nlohmann::json job_state(const JobId& id) const;
  // Of GET …/metrics: of each rank and set of names at most so many rows, evenly over the steps and
  // the newest among them. Without `points` all.
  struct MetricsQuery {
    std::optional<int> rank;
    std::optional<std::size_t> points;
  };
  // Both are read by a thread of its own. The metrics' JSON comes as one string. Of the events
  // those that followers have been told of until this call; what fails is {"error"}.
  void job_metrics(const JobId& id, const MetricsQuery& query, Answer done) const;
  void job_events(const JobId& id, Answer done) const;
  void stop(const JobId& id, std::optional<std::chrono::seconds> grace, Answer done);
  // Also one that is not known, of which there are folders: status() names them.
  void remove(const JobId& id, Answer done);
  // These checkpoints were brought home, whole: nobody need be asked before they go.
  void pulled(const JobId& id, const std::set<int>& checkpoints, Answer done);
  // Makes a copy of the database now; answers with what status() has of it.
  void make_copy(Answer done);
  // The database was restored within a week: what may belong to jobs that were lost is kept.
  bool restored_lately() const;
  // Some on record cannot be read by this head: what may belong to them is kept.
  bool has_unread_jobs() const;
  // ---- Searches, see engine/search.hpp; docs/api.md has what is answered.
  // The job of the first trial, as checks of a job take it. Throws Error where it cannot be made.
  static JobSpec first_trial(const tune::SearchSpec& spec);
  nlohmann::json plan_search(const tune::SearchSpec& spec) const;  // dry_run
  void submit_search(const std::string& submission_id, tune::SearchSpec spec,
                     const std::map<std::string, std::string>& secrets, Answer done);
  void stop_search(const SearchId& id, std::optional<std::chrono::seconds> grace, Answer done);
  void resume_search(const SearchId& id, const std::map<std::string, std::string>& secrets,
                     Answer done);
  void remove_search(const SearchId& id, Answer done);
  nlohmann::json searches(std::optional<std::size_t> most) const;
  void search(const SearchId& id, std::size_t most_trials, Answer done) const;
  static constexpr std::size_t kMostTrialsShown = 1000;  // of one answer
  void search_trials(const SearchId& id, std::uint64_t from, std::size_t count, Answer done) const;
  std::optional<SearchId> open_search() const;  // one that has not ended

  // Stops every job; `done` when none is left.
  void stop_all(Answer done);
  // The node gets no new ranks, and is "drained" when none run there; `undo` takes it back.
  // Error(not_found); one that has left answers so. Error(conflict) when it is lost, or is to be
  // taken back and leaves by itself.
  void drain(const NodeId& node, bool undo, Answer done);
  // The node leaves: its certificate is worth nothing from now on. With ranks on it an
  // Error(conflict), unless `force`: then they are ended, and their attempts fail.
  // `why`: beside that it was removed.
  void remove_node(const NodeId& node, bool force, Answer done, const std::string& why = {});
  // What its machine is being made to be, or why it cannot; empty: that is over. While it `waits`
  // for it the node is not ready.
  void preparing(const NodeId& node, const std::string& what, bool waits);
  // How many nodes the cluster is to have, beside those that join by themselves; jobs that need
  // more wait for those that are missing.
  void expect_nodes(int count);
  // Which machines join by themselves, and which may be asked for. Gives what jobs need of them.
  const Growth& expect_machines(const MachinesToCome& machines);
  // What nodes have that are here or come, as their types say. Of such as no type is known of, what
  // they say themselves.
  void set_node_types(const wire::NodeTypes& types);
  // What may be deleted from now on. What has been forgotten by the settings before stays so.
  void set_storage(const StorageSpec& settings);
  const StorageSpec& storage() const;
  // Of every job that is known: what it was made of must stay at hand.
  std::set<std::string> content_trees() const;
  std::vector<NodeId> nodes() const;        // all but those that left, by name
  bool has_seen(const NodeId& node) const;  // those that left too
  bool is_gone(const NodeId& node) const;   // it was removed
  bool has_jobs() const;                    // that have not ended, or are being submitted
  std::optional<JobId> open_job() const;    // one that has not ended
  std::vector<JobId> open_jobs() const;     // all of them, those that cannot be read too
  struct NodeJobs {
    std::set<std::pair<JobId, int>> running;  // attempts whose supervisor there has spoken
    std::set<JobId> open;                     // that have not ended, and have or had ranks there
  };
  std::map<NodeId, NodeJobs> jobs_by_node() const;
  bool runs(const NodeId& node, const JobId& job, int attempt) const;  // as NodeJobs says
  bool is_open(const JobId& job) const;
  // From now on none is taken, for this reason; empty: they are.
  void take_no_jobs(const std::string& why);
  enum class Presence : std::uint8_t {
    unseen,
    away,  // not connected, and not given up yet
    lost,  // it was given up, has left or was removed
    here,
  };
  Presence presence(const NodeId& node) const;
  // Whose ranks run there, or are to start; or why it is in use without any.
  std::map<NodeId, std::string> nodes_in_use() const;
  std::optional<NodeCapacity> capacity(const NodeId& node) const;  // with nothing on it
  std::string broken(const NodeId& node) const;  // why it cannot be prepared; empty: it can
  bool is_prepared(const NodeId& node) const;    // or was, when it was heard of last
  bool is_drained(const NodeId& node) const;     // or is to be, when its ranks have ended
  bool leaves(const NodeId& node) const;         // it is here, and has said that it leaves

  // Where the logs of a rank are and whether more may come; for the log readers.
  struct LogSource {
    int attempt = 1;
    int rank = 0;
    NodeId node;
    bool copied = false;  // the node is on another machine: these are the head's copies
    bool lost = false;    // the node was given up: what it wrote last is not here
    fs::path folder;      // that holds R.out and R.err

    fs::path out() const { return folder / (std::to_string(rank) + ".out"); }
    fs::path err() const { return folder / (std::to_string(rank) + ".err"); }
  };
  std::vector<LogSource> logs(const JobId& id, std::optional<int> attempt) const;
  // Logs that are no rank's, by their names in the API: NODE/setup.log and the like, whether they
  // are there or not.
  std::vector<std::pair<std::string, fs::path>> other_logs(const JobId& id, int attempt) const;
  // The node has, or had, ranks of the attempt, or may have had them, and may send their logs.
  bool knows_share(const NodeId& node, const JobId& job, int attempt) const;
  // Bytes that are kept of each stream of its ranks; 0: all, or there is no such job.
  std::uint64_t log_limit(const JobId& id) const;
  // Where a committed checkpoint is, or with lineage.hpp's kStartNumber the one that the job starts
  // from; absent when there is no such.
  std::optional<fs::path> checkpoint(const JobId& id, int number) const;
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
  // It tells how far the node's clock is from the head's; the answer is to have clock.boot().
  void heartbeat(const NodeId& node, const wire::Heartbeat& beat);
  // The node says that it leaves, and why: it gets no new ranks, and the attempts that have ranks
  // there fail. When `over` it has left, and nobody waits for it or for a lease of its ranks; once
  // that is durable `left` hears it.
  void leaving(const NodeId& node, const std::string& reason, bool over,
               std::function<void()> left = {});
  // Why the machine of a node that left, or was lost, has ended, as its provider says ("Slurm job 7
  // was preempted"): this joins the reasons of the attempts that ended with it. What ended because
  // the provider has `taken_back` the machine is no failure: a restart for it is counted no more.
  void explain(const NodeId& node, const std::string& why, bool taken_back = false);
  void event(const NodeId& node, const JobId& job, int attempt, const wire::AttemptEvent& event);
  // The supervisor died without a last event; what carried its token has been killed, but for
  // `unkillable`.
  void supervisor_lost(const NodeId& node, const JobId& job, int attempt, const std::string& reason,
                       const std::vector<pid_t>& unkillable);
  // What prepare() asked for is there, or why not.
  void attempt_prepared(const NodeId& node, const JobId& job, int attempt,
                        const std::optional<Error>& error);
  // Those that cannot talk; none: all is well.
  void pairs_checked(const JobId& job, int attempt, const std::vector<Nodes::BrokenPair>& broken);
  // How far a node is with an attempt's content.
  void staging(const NodeId& node, const wire::Staging& news);
  void stacks_taken(const NodeId& node, const wire::StacksTaken& news);
  // The oldest output of some rank is not kept any more, as the job's log_limit says; or, there, it
  // must be, for this reason. Each is told once.
  void logs_released(const std::string& where, const JobId& job, const std::string& error);
  // What the attempt is made of, if it is under way and has ranks on the node.
  std::optional<JobContent> content_for(const NodeId& node, const JobId& job, int attempt) const;
  // As nodes of other machines reach it; empty: they do not.
  std::string address_of(const NodeId& node) const;
  // The node could not start the attempt at all.
  void start_failed(const NodeId& node, const JobId& job, int attempt, const Error& error);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::head

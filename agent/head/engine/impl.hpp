#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "agent/head/engine/causes.hpp"
#include "agent/head/engine/engine.hpp"
#include "agent/head/engine/job.hpp"
#include "agent/head/engine/moments.hpp"
#include "agent/head/engine/node_clock.hpp"
#include "agent/head/engine/queue.hpp"
#include "agent/head/engine/restart.hpp"
#include "agent/head/engine/retention.hpp"
#include "agent/head/engine/search.hpp"
#include "agent/head/store/rows.hpp"
#include "agent/head/store/store.hpp"
#include "launcher/core/worker.hpp"

// The engine's inside, for its own files only. Everything here is the engine's thread's.
//
// How a thing that happens goes through: the rows in memory change at once; the same change goes to
// the store as one Tx; what the world may see or feel of it (a frame, an answer, a start) is an
// effect, which runs when the change is durable, for one job in the order in which things happened.
namespace dtrain::head {

// A search whose trials' legs are jobs here.
struct SearchOf {
  SearchRow row;
  std::string name;
  std::int64_t order = 0;
  Monotonic since;  // row.since
  bool durable = false;
  std::shared_ptr<Search> state;   // of one that has not ended; else it is read when asked for
  std::set<std::string> trees;     // what its trials are made of and start from; also if stopped
  std::string secrets;             // JSON; empty: none
  std::optional<Params> starting;  // those of a new trial that is on its way to the store
  std::set<TrialNumber> going_on;  // so are next legs of these
  std::set<TrialNumber> told_to_stop;   // of Search::to_stop()
  bool being_read = false;              // to go on, until it does
  bool is_unread = false;               // by this head; its jobs and secrets are left as they are
  std::optional<Monotonic> again;       // there was no room for a leg: not before then
  std::string no_room;                  // why not; empty: there is
  std::vector<Engine::Answer> waiting;  // for it to be durable
};

// Of searches that have ended, in the order in which they were asked for.
struct ReadSearches {
  std::vector<std::shared_ptr<Search>> searches;
  std::optional<Error> error;
};

struct Node {
  NodeRow row;
  std::string glibc;
  std::optional<wire::SlurmPlace> slurm;  // as its agent has said; absent: in none, or not known
  bool connected = false;
  bool being_removed = false;
  std::string leaves;       // why it is about to leave by itself; empty: it is not
  std::string preparing;    // what its machine is being made to be; empty: it is
  bool unprepared = false;  // and it waits for that
  std::uint64_t left = 0;   // of those that have left, the last has the highest
  Monotonic heard;
  std::string head_address;
  std::vector<wire::Interface> interfaces;
  std::set<std::string> features;
  std::set<std::pair<JobId, int>> leftovers;  // old epochs that may still live there
  std::set<std::pair<JobId, int>> ended;      // attempts, because it left or was lost
  NodeClock clock;  // CLOCK_BOOTTIME of its machine against Impl::head_time()
  std::optional<std::chrono::nanoseconds> clock_epoch;  // its time of the day less that
  std::string word;         // its provider's, on the end of its machine; empty: it may be there
  bool taken_back = false;  // by its provider
};

inline bool drains(const Node& node) {
  return node.row.state == NodeState::draining || node.row.state == NodeState::drained;
}

// What is done in a storage: starts of attempts do not wait behind gigabytes of checkpoints.
enum class StorageWork : std::uint8_t { quick, bulk };

// One for each storage and kind of work, as long as there is something to do: a storage of which
// nothing comes back, as of a network's whose server is gone, holds up nobody but its own jobs.
struct StorageWorker {
  Worker worker;
  int tasks = 0;  // that are not through, what follows them here included
};

// One thing that happened, on its way to the store.
struct Tx {
  Changes changes;
  bool job = false;  // the job's row goes along
  std::vector<std::function<void()>> effects;
  std::vector<std::function<void()>> when_durable;  // also for Urgency::soon; for acknowledgements
};

Error error_of(const std::exception_ptr& failure);
nlohmann::json time_json(const std::optional<WallTime>& time);
// Of a submission by a job or a search. Both throw Error.
void check_submission_id(const std::string& id);
void wait_for_submission(std::vector<Engine::Answer>& waiting, Engine::Answer done);
// The error of docs/api.md for a failure that no rank is the cause of.
nlohmann::json error_without_rank(const std::string& message, int attempt);

PastAttempts past_of(const Job& job);
// What the share uses.
PlacedShare placed(const Job& job, const Share& share);

struct Engine::Impl {
  // Jobs that others need, by name, and why.
  using Holds = std::map<JobId, std::string>;

  Impl(EngineOptions o, const Clock& c, Nodes& n, Hooks h, std::unique_ptr<Store> s);
  ~Impl();

  // load.cpp
  void load();
  void clear_old_secrets();

  // restored.cpp
  void take_restored();
  void keep_restored();
  void settle_restore();
  std::string restored_words() const;
  bool restored_lately() const;
  // It was open in the copy, and its newest attempt began before that.
  bool is_of_copy(const JobId& job) const;
  std::string held_by_restore(const Job& job) const;
  int next_attempt(const Job& job) const;
  void fill_gap(Job& job, Attempt& attempt, Share& share, const wire::AttemptEvent& event);
  void lose_end(Job& job, Attempt& attempt, Share& share);
  void look_through_storage();
  void take_found(Job& job, const StorageScan& scan);
  void look_for_unknown();
  void note_folder(const JobId& id, const std::string& where);
  void note_folders(const NodeId& node, const std::vector<JobId>& on_disk);
  nlohmann::json store_view() const;
  void make_copy(Answer done);

  // engine.cpp: transactions and effects
  Job* find(const JobId& id);
  // Whose attempt that is under way has a share on that node.
  std::vector<JobId> jobs_on(const NodeId& node) const;
  // An attempt of which may run there; null: none does.
  const JobId* unread_on(const Node& node) const;
  const Job& known(const JobId& id) const;  // Error(not_found)
  Job& known(const JobId& id);
  void commit(Job& job, Tx tx, Urgency urgency);
  // For the store: runs `task` on the engine's thread, if the engine is still there.
  std::function<void(std::exception_ptr)> when_stored(const std::string& what,
                                                      std::function<void()> task);
  void flush(const JobId& id);
  void note(Tx& tx, Job& job, EventLevel level, const std::string& message);
  void enter(Tx& tx, Job& job, JobEvent event, const std::string& reason);
  void enter(Tx& tx, Attempt& attempt, AttemptEvent event);
  void tell_state(const Job& job) const;
  void post(std::function<void()> task);  // dropped when the engine is gone
  template <typename Result>
  void work(Worker& worker, std::function<Result()> task, std::function<void(Result)> then);
  // In the storage of jobs with that storage_path: one thing of a kind after the other.
  template <typename Result>
  void work_in(const std::string& storage_path, StorageWork kind, std::function<Result()> task,
               std::function<void(Result)> then);

  // searches.cpp
  void load_searches(std::vector<SearchRow> rows);
  SearchOf* find_search(const SearchId& id);
  SearchOf& known_search(const SearchId& id);
  // Whose trial's newest leg the job is; null: none's that has not ended.
  SearchOf* search_of(const Job& job);
  void end_leg(const JobId& id, const std::string& reason);
  static void keep(Tx& tx, const SearchOf& search, SearchRecord record);
  void commit_search(SearchOf& search, Changes changes, std::vector<SearchRecord> records,
                     Urgency urgency, std::function<void()> then = {});
  void note_report(Tx& tx, Job& job, std::optional<std::int64_t> step,
                   const nlohmann::json& metrics);
  void note_checkpoint(Tx& tx, Job& job, const CheckpointRow& row);
  void note_leg_end(Tx& tx, Job& job);
  // A leg that is about to go to the store, or one that cannot.
  void note_leg(Tx& tx, Job& job);
  void note_no_leg(const Job& job, const Error& why);
  // Looks at it once what goes on now is done.
  void post_look(const SearchId& id);
  void look_at_search(const SearchId& id);
  bool has_place(const SearchOf& search);
  void stop_legs(SearchOf& search);
  void begin_trial(SearchOf& search);
  void begin_next_legs(SearchOf& search);
  void begin_next_leg(SearchOf& search, TrialNumber trial);
  void add_leg(SearchOf& search, JobSpec spec);
  void end_search(SearchOf& search, const Search::Ending& ending);
  void halt_search(SearchOf& search, Search::Halt why, const std::string& reason,
                   std::optional<std::chrono::seconds> grace = {}, std::function<void()> then = {});
  std::optional<Monotonic> budget_ends(const SearchOf& search) const;
  std::optional<std::string> held_by_search(const Job& job) const;

  // searches_api.cpp
  void submit_search(const std::string& submission_id, tune::SearchSpec spec,
                     const std::map<std::string, std::string>& secrets, Answer done);
  void keep_search(const SearchId& id, std::vector<SearchRecord> learned);
  void search_submitted(const SearchId& id, std::exception_ptr failure);
  void stop_search(SearchOf& search, std::optional<std::chrono::seconds> grace,
                   const std::string& reason, Answer done);
  void resume_search(SearchOf& search, const std::map<std::string, std::string>& secrets,
                     Answer done);
  void go_on_with(const SearchId& id, std::shared_ptr<Search> state, std::string secrets,
                  Answer done);
  void remove_search(SearchOf& search, Answer done);
  // searches_view.cpp
  void read_searches(std::vector<SearchRow> rows, std::function<void(const ReadSearches&)> then);
  void with_search(SearchOf& search, Answer done,
                   std::function<nlohmann::json(const SearchOf&, const Search&)> view);
  nlohmann::json search_summary(const SearchOf& search) const;
  nlohmann::json counted(const SearchOf& search, const Search& state) const;
  nlohmann::json search_list(std::size_t most) const;
  nlohmann::json trial_view(const Trial& trial) const;
  const char* shown_state(const Trial& trial) const;

  // api.cpp
  void own_trial(JobSpec& spec);
  void check_open() const;  // Error(conflict) when nothing is taken
  static void check_secrets(const JobSpec& spec, const std::map<std::string, std::string>& secrets);
  Job& add_job(JobSpec spec, const std::string& submission_id);
  void submitted(const JobId& id, std::exception_ptr failure);
  void submit(const std::string& submission_id, JobSpec spec,
              const std::map<std::string, std::string>& secrets, Answer done);
  // Secrets are on the disk before anything is known of their job.
  void keep_secrets(Job& job, std::string text);
  void write_secrets(const fs::path& path, std::string text,
                     std::function<void(std::optional<Error>)> done);
  void prepare_submitted(Job& job);
  // The job's first rows go to the store, with what `tx` has of it.
  void keep_submitted(Job& job, Tx tx);
  void stop(Job& job, std::optional<std::chrono::seconds> grace, StopCause cause,
            const std::string& reason, Answer done);
  // `reason`: why it goes by itself; empty: somebody asked for it.
  void remove(Job& job, const std::string& reason, const Holds& held, Answer done);
  // What is left of a job goes here and on these nodes, and its id never comes again.
  void forget(const JobId& id, const std::set<NodeId>& on, const std::string& reason, Answer done);
  void remove_unknown(const JobId& id, Answer done);
  void stop_unread(const JobId& id, std::optional<std::chrono::seconds> grace, const Answer& done);
  void stop_all(Answer done);
  void check_drained();

  // schedule.cpp
  void take_machines();
  NodeCapacity empty_capacity(const Node& node) const;  // with nothing on it
  std::vector<NodeCapacity> capacities() const;
  // The nodes of the same machine, and itself; none where there is no such node.
  std::set<NodeId> beside(const NodeId& node) const;
  std::vector<WaitingJob> waiting() const;
  std::vector<RunningJob> running() const;
  int missing_nodes() const;  // of those that the cluster is to have
  int nodes_to_come() const { return missing_nodes() + to_come.nodes; }
  std::string held(const Job& job) const;
  // Looks at the queue once what goes on now is done: a thousand jobs that end at once are one
  // look.
  void schedule();
  void post_look();
  void look_at_queue();
  void note_needs();
  std::vector<NodeCapacity> free_now() const;  // but for what is kept
  Growth grown(const std::vector<WaitingJob>& queue) const;
  std::vector<WaitingJob> growth_queue(const std::vector<WaitingJob>& queue,
                                       std::vector<NodeCapacity>& all) const;
  void settle_dependents();
  void begin_attempt(Job& job, const QueueDecision::Start& start);
  struct Prepared {
    StorageScan scan;
    std::optional<Error> error;
    bool away = false;  // the storage is not there, and checkpoints in it are on record
  };
  void prepared(const JobId& id, const std::string& token, Prepared result);
  void look_for_storage(Job& job);
  void advance(Job& job, Attempt& attempt);

  // hot_spares.cpp
  static bool takes_ranks(const Node& node);
  static bool may_come(const Node& node);
  // What their last attempts had, of all jobs that wait to begin anew.
  using KeptGangs = std::map<JobId, std::vector<PlacedShare>>;
  KeptGangs kept_gangs() const;
  WaitingJob::Kept kept_for(const Job& job, const KeptGangs& gangs_kept) const;
  // What is kept for the job is used, in the eyes of others. `capacity` as of capacities().
  static void use_kept(const Job& job, const KeptGangs& gangs_kept, bool spares_too,
                       std::vector<NodeCapacity>& capacity);
  // Who keeps which spares; with `take_new` also what is free, and they are prepared.
  void settle_spares(bool take_new);
  void keep_spares(Job& job, std::vector<PlacedShare> shares, const std::string& lacks);
  // A part of it: none with the end of a job.
  void set_spares(Tx& tx, Job& job, std::vector<PlacedShare> shares, const std::string& lacks);
  void prepare_spares(Job& job);
  std::vector<Nodes::PairMember> pairs_with(const Attempt& attempt, const Spare& spare) const;
  static bool is_spare(const Job& job, const NodeId& node, int number);
  // True: that was about a spare.
  bool spare_staged(const NodeId& node, const wire::Staging& news);
  bool spare_failed(const NodeId& node, const JobId& id, int number, const std::string& why);
  bool spare_pairs_checked(const JobId& id, int number,
                           const std::vector<Nodes::BrokenPair>& broken);
  void spare_gone(const NodeId& id);
  std::map<NodeId, JobId> spares() const;

  // prepare.cpp
  bool remote(const Share& share) const;  // on another machine than the head
  bool many_machines(const Attempt& attempt) const;
  // As the node of the share sees them.
  std::string storage_of(const Job& job, const Share& share) const;
  std::optional<std::string> checkpoint_of(const Job& job, const Attempt& attempt,
                                           const Share& share) const;
  void choose_addresses(Attempt& attempt) const;
  // Asks for what is missing; true once all of it is there.
  bool ready_to_start(Job& job, Attempt& attempt);
  bool prepare_share(Job& job, Attempt& attempt, Share& share);
  void attempt_prepared(const NodeId& node, const JobId& job, int attempt,
                        const std::optional<Error>& error);
  void pairs_checked(const JobId& job, int attempt, const std::vector<Nodes::BrokenPair>& broken);
  void give_up_start(Job& job, Attempt& attempt, const std::string& reason);

  // schedule.cpp
  void send_start(Job& job, Attempt& attempt, Share& share);

  // end.cpp
  // Ends the ranks of all shares but `but`, for a reason that is not a stop. Those of `but` end by
  // themselves.
  void fail_attempt(Tx& tx, Job& job, Attempt& attempt, const std::string& reason,
                    const NodeId& but);
  void send_stops(const Job& job, const Attempt& attempt, const NodeId& but);
  void send_stop(const Job& job, const Attempt& attempt, const Share& share);
  void drop_unsent(const Job& job, Attempt& attempt, Tx& tx);
  void check_end(const JobId& id);
  void end_attempt(Job& job, Attempt& attempt);

  // content.cpp
  void check_glibc(const JobSpec& spec) const;  // Error(conflict)
  // srun.cpp
  void check_launcher(const JobSpec& spec) const;  // Error(conflict)
  wire::SrunStep srun_step(const Attempt& attempt) const;
  std::string not_one_allocation(const Attempt& attempt) const;
  bool awaits_names(const Attempt& attempt) const;
  bool content_in_place(Job& job, Attempt& attempt);
  void staging(const NodeId& node, const wire::Staging& news);
  void unstage(const Job& job, const Attempt& attempt, Share& share);
  std::optional<JobContent> content_for(const NodeId& node, const JobId& id, int number);
  static std::string staging_reason(const Job& job);
  std::string reason_of(const Job& job) const;  // as it is shown

  // progress.cpp
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::RankBeats& body);
  void note_advance(Job& job, Attempt& attempt, const Share& share, const wire::RankBeat& beat,
                    bool heartbeat);
  // Which ranks have turned out to be slow, of a node that has said something of its ranks.
  void tell_stragglers(Job& job, Attempt& attempt, const Share& share);
  // If it hung, since `stood`: it is said that it does no longer.
  void goes_on(Tx& tx, Job& job, Attempt& attempt, Monotonic stood);
  std::optional<Monotonic> hang_due(const Job& job) const;
  bool all_are_heard(const Attempt& attempt) const;
  void look_for_hang(Job& job, Attempt& attempt);
  void ask_for_stacks(const Job& job, Attempt& attempt);
  void stacks_taken(const NodeId& node, const wire::StacksTaken& news);
  void end_look(Job& job, Attempt& attempt);

  // log_limit.cpp
  void logs_released(const std::string& where, const JobId& id, const std::string& error);

  // clock.cpp
  void tick();
  void rearm();  // once what goes on now is done, as schedule()
  void arm();

  // storage.cpp
  Holds holds() const;
  std::optional<std::string> held_by(const Job& job, const Holds& holds) const;
  void finish_deletions();
  void clear_forgotten(const NodeId& node, const std::vector<JobId>& on_disk);
  bool drop_leftover(Node& node, const JobId& job, int attempt);
  nlohmann::json forgotten_lately() const;
  void pulled(const Job& job, const std::set<int>& numbers, Answer done);
  void look_at_disk();
  void housekeeping();
  // What was found by these settings; housekeeping_runs until it is through.
  void forget_by_setting(const std::shared_ptr<std::deque<Forgetting>>& old,
                         const StorageSpec& settings);
  void set_storage(const StorageSpec& settings);

  // clocks.cpp
  // Nanoseconds by which the order of things is told. They begin as the time of the day, and then
  // nobody sets them.
  std::chrono::nanoseconds head_time() const;
  std::chrono::nanoseconds head_time(Monotonic time) const;
  void heartbeat(const NodeId& id, const wire::Heartbeat& beat);
  void date(RankRow& rank, const Share& share, const wire::RankExited& exited) const;
  std::vector<Failure> failures_of(const Attempt& attempt) const;
  std::string causes_text(const std::vector<Failure>& failures, const Causes& causes) const;

  // nodes.cpp
  void joined(const NodeInfo& info);
  void preparing(const NodeId& id, const std::string& what, bool waits);
  void heard(const NodeId& id);
  void gone(const NodeId& id);
  void lose_node(Node& node);
  void look_at_lease(Job& job);
  void set_node(Tx& tx, Node& node, NodeEvent event, const std::string& reason);
  void set_joined(Tx& tx, Node& node);
  void commit_node(Tx tx);
  Node& known_node(const NodeId& id);  // Error(not_found)
  std::map<NodeId, std::string> nodes_in_use() const;
  void settle_drains();
  void drain(const NodeId& id, bool undo, Answer done);
  void remove_node(const NodeId& id, bool force, Answer done, const std::string& why);
  // Those that have ranks there: all of their ranks but the node's own are stopped. `failed` is
  // told of each, and whether its start had been sent to the node.
  void fail_attempts_on(
      const NodeId& id, const std::string& reason,
      const std::function<void(const JobId& job, int attempt, bool sent)>& failed);
  void finish_removals();
  void removed(const NodeId& id, bool counted, const std::string& why, Answer done);
  void leaving(const NodeId& id, const std::string& reason, bool over, std::function<void()> left);
  void explain(const NodeId& id, const std::string& told, bool taken_back);
  bool was_taken_back(const NodeId& id) const;
  bool is_no_failure(const Attempt& attempt, const std::optional<RankRow>& cause) const;
  Fault fault_of_end(const Attempt& attempt, const std::optional<RankRow>& cause) const;
  void wait_before(Job& job, std::chrono::seconds wait, WallTime from);
  // An attempt succeeded there since then, or has committed a checkpoint.
  bool did_well(const NodeId& node, WallTime since) const;
  // The attempt does better than those before it: the node where they failed gets no new ranks.
  void set_suspect_aside(Tx& tx, Job& job, const Attempt& attempt);
  void add_word(const NodeId& id, std::string& reason) const;
  void lose_ranks(Tx& tx, Attempt& attempt, const Share& share);
  void lose_shares(Node& node, const std::string& reason);
  void lose_share_on(Node& node, Job& job, Attempt& attempt, Share& share,
                     const std::string& reason);
  // Those whose nodes are not there any more, of an attempt that is durable.
  void lose_shares_on_lost(Job& job, Attempt& attempt);
  // Its node was heard last then.
  void lose_share(Job& job, Attempt& attempt, Share& share, const std::string& reason,
                  Monotonic heard);
  void stop_leftover(const NodeId& node, const JobId& job, int attempt);
  enum class Broken : std::uint8_t { not_started, supervisor_gone };
  void share_broken(const NodeId& node, const JobId& job, int attempt, const std::string& reason,
                    Broken how, const std::vector<pid_t>& unkillable);

  // events.cpp
  void event(const NodeId& node, const JobId& job, int attempt, const wire::AttemptEvent& event);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::MasterReady& body);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::SetupStarted& body);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::RanksStarted& body);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::RankReport& body);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::AttemptWarning& body);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::RankExited& body);
  void apply(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
             const wire::NodeFinished& body);
  void metrics_report(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                      const wire::RankReport& report);
  void warn(Tx& tx, Job& job, Attempt& attempt, const std::string& message);
  void note_unkillable(Tx& tx, Job& job, const NodeId& node, const std::vector<pid_t>& unkillable);
  // The share's row goes with the transaction; when durable, `seq` is acknowledged.
  void keep(Tx& tx, Share& share);
  void ack_when_durable(Tx& tx, const Share& share, std::uint64_t seq,
                        std::optional<nlohmann::json> answer = std::nullopt);
  void ack(const JobId& job, int attempt, const NodeId& node, std::uint64_t seq,
           std::optional<nlohmann::json> answer);
  void tell_heard(const Share& share, std::uint64_t seq,
                  const std::optional<nlohmann::json>& answer);
  nlohmann::json answer_again(const Job& job, int attempt, const nlohmann::json& report) const;

  // checkpoints.cpp
  fs::path storage(const Job& job) const;
  void checkpoint_report(Job& job, Attempt& attempt, Share& share, std::uint64_t seq,
                         const wire::RankReport& report);
  struct Placed {
    std::optional<CommittedCheckpoint> adopted;  // it had been committed before a crash
    std::optional<Error> error;
    bool fetch = false;   // it is to be brought from its node first
    fs::path known = {};  // it is part of a checkpoint that is on record
  };
  void bring_shard(Job& job, Attempt& attempt, const Share& share, const ShardReport& task);
  void fetch_shard(const JobId& id, const ShardReport& task, const NodeId& node);
  void shard_placed(const JobId& id, int attempt, std::int64_t step, int shard, Placed result);
  struct Committed {
    std::optional<CommittedCheckpoint> checkpoint;
    std::optional<Error> error;
  };
  void start_commit(Job& job, Attempt& attempt, std::int64_t step);
  void commit_held(Job& job, Attempt& attempt);
  void committed(const JobId& id, int attempt, std::int64_t step, Committed result);
  // Answers all shards of a step with an error; the step may be reported again.
  void wait_for_room(Job& job, Attempt& attempt, std::int64_t step, const Error& error);
  void look_for_room(Job& job, Attempt& attempt);
  void look_for_shards(Job& job, Attempt& attempt);
  void drop_collecting(Tx& tx, Job& job, Attempt& attempt, std::int64_t step,
                       const std::string& why);
  // Deletes what `num_to_keep` lets go, but not what ranks of `running` (may be null) began from.
  void retain_checkpoints(Tx& tx, Job& job, const Attempt* running);
  // Of which it is on record that they go: their folders, then their rows.
  void remove_marked(const JobId& id, const std::vector<int>& numbers, const fs::path& folder);
  void see_clock();
  void reconcile(Tx& tx, Job& job, const StorageScan& scan);
  static CheckpointRow row_of(const JobId& job, const CommittedCheckpoint& checkpoint);

  // lineage.cpp
  void check_origin(const JobSpec& spec) const;  // throws Error
  void check_source(const StartCheckpoint& start) const;
  const Job& known_origin(const std::string& name, const char* use) const;
  std::vector<std::string> content_wanted(const JobSpec& spec) const;
  void take_over(Job& job);
  void taken_over(const JobId& id, Prepared result);
  void drop_storage(const Job& job);
  std::string start_path(const Job& job) const;  // of a job with `start`, as the head sees it
  // By which nodes know the checkpoint of an attempt.
  std::optional<int> checkpoint_number(const Job& job, const std::string& path) const;

  // view.cpp
  nlohmann::json status(std::optional<std::size_t> most_jobs, bool trials) const;
  nlohmann::json jobs_meant(const std::string& reference) const;
  std::vector<std::string> warnings() const;
  nlohmann::json state_json(const Job& job) const;
  nlohmann::json summary(const Job& job) const;
  nlohmann::json details(const Job& job) const;
  nlohmann::json plan(const JobSpec& spec) const;
  fs::path log_folder(const Share& share) const;

  EngineOptions options;
  const Clock& clock;
  Nodes& nodes_out;
  Hooks hooks;
  WallTime started;
  std::chrono::nanoseconds head_epoch;  // the time of the day less clock.boot(), at the start
  std::map<JobId, Job> jobs;
  std::map<JobId, Job*> live;  // jobs that have not ended
  std::set<JobId> submitting;  // those that are not durable yet
  std::map<std::string, JobId> submissions;
  std::map<SearchId, SearchOf> searches;
  std::map<SearchId, SearchOf*> live_searches;  // that have not ended
  std::set<SearchId> search_looks;              // posted
  std::map<std::string, SearchId> search_submissions;
  std::map<NodeId, Node> nodes;
  std::map<JobId, ForgottenRow> forgotten;
  std::map<JobId, std::set<std::string>> unknown;  // jobs that no row names: who has a folder
  // Jobs on record that this head cannot read, and another may; whether each is open. What they
  // have and run stays, and what their supervisors say is not answered.
  std::map<JobId, bool> unread;
  std::optional<RestoredRow> restored;
  Monotonic restore_settles;
  WallTime restore_settles_at;  // the same, for people
  std::set<JobId> unlooked;     // jobs of a restored database whose storage is being looked through
  std::uint64_t last_left = 0;
  MachinesToCome told_machines;
  wire::NodeTypes node_types;
  MachinesToCome to_come;  // of both
  Growth growth;           // as last decided
  // As last told: what is to be asked for, and nodes with ranks or that jobs wait for.
  std::vector<Growth::Gang> gangs;
  std::set<NodeId> busy;
  std::int64_t last_event = 0;
  std::int64_t last_order = 0;
  std::uint64_t commits = 0;
  std::uint64_t durable = 0;  // number of the newest durable urgent commit
  std::optional<Monotonic> armed;
  Moments moments;
  Monotonic next_housekeeping;
  bool housekeeping_runs = false;
  Monotonic next_disk_look;
  bool disk_look_runs = false;
  DiskUse disk;
  bool look_posted = false;
  bool look_waits = false;  // for the time of:
  Monotonic next_look;      // at the queue, at the earliest
  bool arm_posted = false;
  bool looking = false;
  bool shutting_down = false;
  std::string closed;  // why no job is taken; empty: they are
  std::vector<Answer> drained;

  std::shared_ptr<int> alive = std::make_shared<int>(0);
  std::unique_ptr<Store> store;
  // Last, so that they end first.
  std::map<std::pair<std::string, StorageWork>, StorageWorker> storage_workers;
  Worker quick;    // small files in the head's own root
  Worker history;  // what is read from the store and may be long
  Worker tidy;     // what nobody waits for: sizes, and what is deleted
};

template <typename Result>
void Engine::Impl::work(Worker& worker, std::function<Result()> task,
                        std::function<void(Result)> then) {
  const std::weak_ptr<int> guard = alive;
  worker.add([task = std::move(task), then = std::move(then), post_out = hooks.post, guard] {
    auto result = std::make_shared<Result>(task());
    post_out([result, then, guard] {
      if (guard.lock()) then(std::move(*result));
    });
  });
}

template <typename Result>
void Engine::Impl::work_in(const std::string& storage_path, StorageWork kind,
                           std::function<Result()> task, std::function<void(Result)> then) {
  const std::pair key(storage_path, kind);
  auto its = storage_workers.find(key);
  if (its == storage_workers.end()) {
    try {
      its = storage_workers.try_emplace(key).first;
    } catch (const std::system_error&) {  // no thread can be made now
      return work<Result>(quick, std::move(task), std::move(then));
    }
  }
  ++its->second.tasks;
  work<Result>(its->second.worker, std::move(task),
               [this, key, then = std::move(then)](Result result) {
                 then(std::move(result));
                 const auto found = storage_workers.find(key);
                 if (--found->second.tasks == 0) storage_workers.erase(found);
               });
}

}  // namespace dtrain::head

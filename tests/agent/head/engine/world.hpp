#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/store/store.hpp"
#include "tests/support/fake_clock.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::head::testing {

// Tasks for the engine's thread, from any thread; run by hand.
class PostQueue;

// The real store, with a door that can be shut: commits wait until it is opened again.
class DoorStore;

struct Started {
  NodeId node;
  wire::AttemptSpec spec;
  std::map<std::string, std::string> secrets;
};
struct Sent {
  NodeId node;
  JobId job;
  int attempt = 0;
  wire::AttemptCommand command;
};

// An engine with a clock, nodes and queues that are moved by hand, over a real database in a
// folder of its own.
class World : public Nodes {
 public:
  explicit World(int nodes = 1);
  ~World() override;

  // The head dies and is started anew over the same database.
  void restart();
  // Runs what is posted until `done`; fails the test after kPatience of the real clock.
  void until(const std::function<bool()>& done);
  // Until everything that was committed is durable, and what followed from it too.
  void settle();
  void advance(std::chrono::milliseconds by);  // and the timer, if it is due

  // ---- Nodes
  // What such a node says of itself, each on a machine of its own.
  static NodeInfo info_of(const std::string& node);
  void join(const std::string& node, std::vector<std::pair<JobId, int>> attempts = {}, int cpus = 4,
            const std::string& leaving = "");
  // The first one of all nodes comes as they join, unless their clocks are not `clocks_known`. The
  // node's clock is so far `ahead`, a message takes so long one way.
  void beat(const std::string& node, std::chrono::nanoseconds ahead = {},
            std::chrono::nanoseconds way = {});
  bool clocks_known = true;
  void say(const std::string& node, const JobId& job, int attempt, wire::AttemptEventBody body);
  void repeat(const std::string& node, const JobId& job, int attempt, std::uint64_t seq,
              wire::AttemptEventBody body);
  void start_ranks(const std::string& node, const JobId& job, int attempt, int first, int count);
  void exit_rank(const std::string& node, const JobId& job, int attempt, int rank, int code,
                 bool stopped = false);
  void finish(const std::string& node, const JobId& job, int attempt,
              wire::NodeFinished::Outcome outcome, const std::string& reason = "");
  // One node, one rank: from started to the end with a code.
  void run_through(const std::string& node, const JobId& job, int attempt, int code);

  bool can_come() const override { return head_has_port; }
  void start(const NodeId& node, const wire::AttemptSpec& spec,
             const std::map<std::string, std::string>& secrets) override;
  void send(const NodeId& node, const JobId& job, int attempt,
            const wire::AttemptCommand& command) override;
  void forget(const NodeId& node, const JobId& job) override;
  void prepare(const NodeId& node, const wire::PrepareAttempt& what) override;
  void check_pairs(const JobId& job, int attempt, std::vector<PairMember> members) override;
  std::string fetch_shard(const NodeId& node, wire::ShardAsk ask, const fs::path& folder,
                          Fetched done) override;
  void shard_taken(const NodeId& node, const std::string& transfer,
                   const std::optional<Error>& error) override;
  void give_up(const NodeId& node) override;
  void revoke(const NodeId& node, bool counted, Revoked done) override;
  bool is_let_in(const NodeId& node) const override { return !shut_out.contains(node); }

  // ---- Jobs
  static JobSpec spec(const std::string& name = "job", int nproc = 1);
  JobId submit(const JobSpec& spec, const std::string& submission_id = "",
               const std::map<std::string, std::string>& secrets = {});
  // The node joins, and runs all ranks of a job of one node.
  JobId begin(const std::string& node, const JobSpec& spec = World::spec());
  nlohmann::json answer_to_submit(const JobSpec& spec, const std::string& submission_id = "");
  nlohmann::json drain(const std::string& node, bool undo = false);  // its answer
  std::string state(const JobId& job);
  // Waits for a start on the node and gives its spec.
  wire::AttemptSpec started(const std::string& node, const JobId& job, int attempt);
  bool was_started(const JobId& job, int attempt) const;
  int stops(const std::string& node, const JobId& job, int attempt) const;
  std::optional<nlohmann::json> answer(const std::string& node, const JobId& job, int attempt,
                                       std::uint64_t seq) const;
  // The highest number that was acknowledged.
  std::uint64_t acknowledged(const std::string& node, const JobId& job, int attempt) const;
  std::vector<std::string> messages(const JobId& job);
  int said(const JobId& job, const std::string& part);  // how many messages have it in them
  nlohmann::json metrics(const JobId& job);             // what the API's list has

  dtrain::testing::TemporaryFolder folder;
  dtrain::testing::FakeClock clock;
  EngineOptions options;
  std::unique_ptr<Engine> engine;
  DoorStore* store = nullptr;
  std::vector<Started> starts;
  std::vector<Sent> sent;
  std::vector<JobNews> news;
  std::function<void()> on_news;  // called for each
  int needs = 0;                  // so often other machines were needed
  std::vector<std::pair<NodeId, JobId>> forgotten;
  std::vector<std::pair<NodeId, wire::PrepareAttempt>> prepares;
  // Pair tests pass by themselves, unless this is off; then the test answers.
  bool pairs_pass = true;
  bool head_has_port = true;
  std::vector<std::vector<PairMember>> pair_tests;
  struct Fetch {
    NodeId node;
    wire::ShardAsk ask;
    fs::path folder;
    Fetched done;
  };
  std::vector<Fetch> fetches;
  std::vector<std::string> taken;  // names of fetches that came to a good end
  std::vector<NodeId> given_up;
  std::vector<NodeId> revoked;
  Revoked revoking;  // of the last: not durable before it is called
  std::set<NodeId> shut_out;
  std::map<std::tuple<std::string, std::string, int>, std::uint64_t> seqs;

  void shut_door();
  void open_door();
  bool waiting_at_door(const std::string& state) const;  // a commit that has a job in that state
  void fill_disk(bool full);

 private:
  std::shared_ptr<PostQueue> queue_;
  std::optional<std::pair<Monotonic, std::function<void()>>> timer_;
};

}  // namespace dtrain::head::testing

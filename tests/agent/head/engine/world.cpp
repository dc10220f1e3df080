#include "tests/agent/head/engine/world.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>

#include <doctest/doctest.h>

#include "tests/support/patience.hpp"

namespace dtrain::head::testing {

class PostQueue {
 public:
  void add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_all();
  }
  // The next task; nothing when none came in time.
  std::function<void()> take(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, patience, [&] { return !tasks_.empty(); })) return {};
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return tasks_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
};

class DoorStore final : public Store {
 public:
  explicit DoorStore(std::unique_ptr<Store> inner) : inner_(std::move(inner)) {}

  Loaded load() override { return inner_->load(); }
  void commit(Changes changes, Urgency urgency, OnFailure on_failure,
              std::function<void(std::exception_ptr)> done) override {
    if (full_ && on_failure == OnFailure::refuse) {
      done(std::make_exception_ptr(Error(ErrorCode::exhausted, "no space left on device")));
      return;
    }
    ++in_flight_;
    if (shut_) {
      for (const JobRow& row : changes.jobs) states_.insert(to_string(row.state));
    }
    auto task = [this, changes = std::move(changes), urgency, on_failure,
                 done = std::move(done)]() mutable {
      inner_->commit(std::move(changes), urgency, on_failure,
                     [this, done](std::exception_ptr failure) {
                       CHECK(!failure);
                       if (done) done(failure);
                       --in_flight_;
                     });
    };
    if (shut_) {
      waiting_.push_back(std::move(task));
    } else {
      task();
    }
  }
  std::vector<EventRow> events(const JobId& job) override { return inner_->events(job); }
  std::vector<MetricsRow> metrics(const JobId& job) override { return inner_->metrics(job); }
  std::vector<SearchRecord> search_records(const SearchId& search) override {
    return inner_->search_records(search);
  }
  std::string trouble() const override { return inner_->trouble(); }
  Copy copy() const override { return inner_->copy(); }
  void make_copy(std::function<void(std::exception_ptr)> done) override {
    inner_->make_copy(std::move(done));
  }

  void shut() { shut_ = true; }
  void open() {
    shut_ = false;
    for (auto& task : waiting_) task();
    waiting_.clear();
    states_.clear();
  }
  bool has_state(const std::string& state) const { return states_.contains(state); }
  void fill(bool full) { full_ = full; }
  int in_flight() const { return in_flight_; }
  std::size_t waiting() const { return waiting_.size(); }

 private:
  bool shut_ = false;
  bool full_ = false;
  std::atomic<int> in_flight_{0};
  std::set<std::string> states_;  // of jobs in commits that wait
  std::vector<std::function<void()>> waiting_;
  // Last: its destructor waits for the thread that calls back into the fields above.
  std::unique_ptr<Store> inner_;
};

World::World(int nodes) : queue_(std::make_shared<PostQueue>()) {
  options.cluster = ClusterId("test-aaaaaa");
  options.cluster_name = "test";
  options.provider = "local";
  options.root.root = folder / "head";
  options.expected_nodes = nodes;
  fs::create_directories(options.root.root);
  restart();
}

World::~World() = default;

void World::restart() {
  engine.reset();
  queue_ = std::make_shared<PostQueue>();  // what was posted dies with the process
  timer_.reset();
  auto door = std::make_unique<DoorStore>(
      open_store({.path = options.root.database(), .soon = std::chrono::milliseconds(2)}));
  store = door.get();
  Engine::Hooks hooks;
  hooks.post = [queue = queue_](std::function<void()> task) { queue->add(std::move(task)); };
  hooks.timer = [this](std::chrono::milliseconds delay, std::function<void()> task) {
    timer_ = {clock.now() + delay, std::move(task)};
  };
  hooks.news = [this](const JobNews& each) {
    news.push_back(each);
    if (on_news) on_news();
  };
  hooks.needs = [this] { ++needs; };
  engine = std::make_unique<Engine>(options, clock, *this, hooks, std::move(door));
}

void World::until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (!done()) {
    if (const auto task = queue_->take(std::chrono::milliseconds(100))) task();
    REQUIRE(std::chrono::steady_clock::now() < deadline);
  }
}

void World::settle() {
  until([&] {
    return queue_->empty() && store->in_flight() == static_cast<int>(store->waiting()) &&
           queue_->empty();
  });
}

void World::advance(std::chrono::milliseconds by) {
  settle();
  clock.advance(by);
  while (timer_ && timer_->first <= clock.now()) {
    const auto task = std::move(timer_->second);
    timer_.reset();
    task();
  }
  settle();
}

NodeInfo World::info_of(const std::string& node) {
  NodeInfo info;
  info.node = NodeId(node);
  info.address = "10.0.0." + node.substr(node.size() - 1);
  info.boot_id = "boot";
  info.machine = "machine-" + node;
  info.root = "/roots/" + node;
  info.cpus = 4;
  info.memory = std::uint64_t{8} << 30;
  info.features = wire::kNodeFeatures;
  info.head_address = "10.0.0.100";
  return info;
}

void World::join(const std::string& node, std::vector<std::pair<JobId, int>> attempts, int cpus,
                 const std::string& leaving) {
  NodeInfo info = info_of(node);
  info.cpus = cpus;
  info.attempts = std::move(attempts);
  info.leaving = leaving;
  engine->joined(info);
  if (clocks_known) beat(node);
}

void World::beat(const std::string& node, std::chrono::nanoseconds ahead,
                 std::chrono::nanoseconds way) {
  wire::Heartbeat beat;
  beat.echoed = clock.boot() - 2 * way;
  beat.received = beat.sent = clock.boot() - way + ahead;
  beat.wall_ns = std::chrono::nanoseconds((clock.wall() - way).time_since_epoch()).count();
  engine->heartbeat(NodeId(node), beat);
}

void World::repeat(const std::string& node, const JobId& job, int attempt, std::uint64_t seq,
                   wire::AttemptEventBody body) {
  engine->event(NodeId(node), job, attempt, {seq, std::move(body)});
}

void World::say(const std::string& node, const JobId& job, int attempt,
                wire::AttemptEventBody body) {
  repeat(node, job, attempt, ++seqs[{node, job.str(), attempt}], std::move(body));
}

void World::start_ranks(const std::string& node, const JobId& job, int attempt, int first,
                        int count) {
  wire::RanksStarted body;
  for (int i = 0; i < count; ++i) body.ranks.push_back({first + i, 1000 + first + i});
  body.time = clock.wall();
  say(node, job, attempt, body);
}

void World::exit_rank(const std::string& node, const JobId& job, int attempt, int rank, int code,
                      bool stopped) {
  wire::RankExited body;
  body.rank = rank;
  body.exit.code = code;
  body.time = clock.wall();
  body.boot_time = clock.boot();
  body.stopped = stopped;
  if (code != 0 && !stopped) {
    body.error_message = "boom";
    body.last_lines = {"first", "last"};
  }
  say(node, job, attempt, body);
}

void World::finish(const std::string& node, const JobId& job, int attempt,
                   wire::NodeFinished::Outcome outcome, const std::string& reason) {
  wire::NodeFinished body;
  body.outcome = outcome;
  body.reason = reason;
  say(node, job, attempt, body);
}

void World::run_through(const std::string& node, const JobId& job, int attempt, int code) {
  started(node, job, attempt);
  say(node, job, attempt, wire::MasterReady{29500});
  start_ranks(node, job, attempt, 0, 1);
  exit_rank(node, job, attempt, 0, code);
  finish(node, job, attempt,
         code == 0 ? wire::NodeFinished::Outcome::succeeded : wire::NodeFinished::Outcome::failed,
         code == 0 ? "" : "rank 0 failed");
}

void World::start(const NodeId& node, const wire::AttemptSpec& spec,
                  const std::map<std::string, std::string>& secrets) {
  starts.push_back({node, spec, secrets});
}

void World::send(const NodeId& node, const JobId& job, int attempt,
                 const wire::AttemptCommand& command) {
  sent.push_back({node, job, attempt, command});
}

void World::forget(const NodeId& node, const JobId& job) {
  forgotten.emplace_back(node, job);
}

void World::prepare(const NodeId& node, const wire::PrepareAttempt& what) {
  prepares.emplace_back(node, what);
}

void World::check_pairs(const JobId& job, int attempt, std::vector<PairMember> members) {
  pair_tests.push_back(std::move(members));
  if (pairs_pass) queue_->add([this, job, attempt] { engine->pairs_checked(job, attempt, {}); });
}

std::string World::fetch_shard(const NodeId& node, wire::ShardAsk ask,
                               const fs::path& folder_for_it, Fetched done) {
  fetches.push_back({node, std::move(ask), folder_for_it, std::move(done)});
  return "fetch-" + std::to_string(fetches.size());
}

void World::shard_taken(const NodeId&, const std::string& transfer,
                        const std::optional<Error>& error) {
  if (!error) taken.push_back(transfer);
}

void World::give_up(const NodeId& node) {
  given_up.push_back(node);
}

void World::revoke(const NodeId& node, bool /*counted*/, Revoked done) {
  revoked.push_back(node);
  revoking = std::move(done);
}

JobSpec World::spec(const std::string& name, int nproc) {
  JobSpec spec;
  spec.name = name;
  spec.command = {"true"};
  spec.workdir = "/tmp";
  spec.nproc_per_node.number = nproc;
  return spec;
}

nlohmann::json World::answer_to_submit(const JobSpec& job, const std::string& submission_id) {
  std::optional<nlohmann::json> answer;
  engine->submit(submission_id, job, {}, [&](nlohmann::json json) { answer = std::move(json); });
  until([&] { return answer.has_value(); });
  return *answer;
}

JobId World::begin(const std::string& node, const JobSpec& job) {
  join(node);
  const JobId id = submit(job);
  started(node, id, 1);
  start_ranks(node, id, 1, 0, job.nproc_per_node.number);
  return id;
}

JobId World::submit(const JobSpec& job, const std::string& submission_id,
                    const std::map<std::string, std::string>& secrets) {
  std::optional<nlohmann::json> answer;
  engine->submit(submission_id, job, secrets,
                 [&](nlohmann::json json) { answer = std::move(json); });
  until([&] { return answer.has_value(); });
  REQUIRE(answer->contains("job"));
  return JobId(answer->at("job").get<std::string>());
}

nlohmann::json World::drain(const std::string& node, bool undo) {
  nlohmann::json answer;
  engine->drain(NodeId(node), undo, [&](nlohmann::json a) { answer = std::move(a); });
  until([&] { return !answer.is_null(); });
  return answer;
}

std::string World::state(const JobId& job) {
  return engine->job(job).at("state").get<std::string>();
}

bool World::was_started(const JobId& job, int attempt) const {
  for (const Started& each : starts) {
    if (each.spec.job == job && each.spec.attempt == attempt) return true;
  }
  return false;
}

wire::AttemptSpec World::started(const std::string& node, const JobId& job, int attempt) {
  const auto find = [&]() -> const Started* {
    for (const Started& each : starts) {
      if (each.node.str() == node && each.spec.job == job && each.spec.attempt == attempt) {
        return &each;
      }
    }
    return nullptr;
  };
  until([&] { return find() != nullptr; });
  return find()->spec;
}

int World::stops(const std::string& node, const JobId& job, int attempt) const {
  int count = 0;
  for (const Sent& each : sent) {
    const bool stop = std::holds_alternative<wire::StopRanks>(each.command);
    if (stop && each.node.str() == node && each.job == job && each.attempt == attempt) ++count;
  }
  return count;
}

std::optional<nlohmann::json> World::answer(const std::string& node, const JobId& job, int attempt,
                                            std::uint64_t seq) const {
  for (const Sent& each : sent) {
    const auto* ack = std::get_if<wire::EventAck>(&each.command);
    if (ack != nullptr && ack->seq == seq && each.node.str() == node && each.job == job &&
        each.attempt == attempt && ack->answer) {
      return ack->answer;
    }
  }
  return std::nullopt;
}

std::uint64_t World::acknowledged(const std::string& node, const JobId& job, int attempt) const {
  std::uint64_t highest = 0;
  for (const Sent& each : sent) {
    const auto* ack = std::get_if<wire::EventAck>(&each.command);
    if (ack != nullptr && each.node.str() == node && each.job == job && each.attempt == attempt) {
      highest = std::max(highest, ack->seq);
    }
  }
  return highest;
}

std::vector<std::string> World::messages(const JobId& job) {
  std::vector<std::string> all;
  nlohmann::json answer;
  engine->job_events(job, [&](nlohmann::json read) { answer = std::move(read); });
  until([&] { return !answer.is_null(); });
  for (const auto& event : answer.at("events")) {
    all.push_back(event.at("message").get<std::string>());
  }
  return all;
}

int World::said(const JobId& job, const std::string& part) {
  const std::vector<std::string> all = messages(job);
  return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const std::string& message) {
    return message.find(part) != std::string::npos;
  }));
}

nlohmann::json World::metrics(const JobId& job) {
  nlohmann::json text;
  engine->job_metrics(job, {}, [&](nlohmann::json answer) { text = std::move(answer); });
  until([&] { return !text.is_null(); });
  return nlohmann::json::parse(text.get<std::string>()).at("metrics");
}

void World::shut_door() {
  store->shut();
}
void World::open_door() {
  store->open();
}
bool World::waiting_at_door(const std::string& state) const {
  return store->has_state(state);
}
void World::fill_disk(bool full) {
  store->fill(full);
}

}  // namespace dtrain::head::testing

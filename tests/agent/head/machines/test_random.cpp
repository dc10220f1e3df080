#include <cstdlib>
#include <random>
#include <string>

#include "agent/head/engine/queue.hpp"
#include "launcher/core/log.hpp"
#include "tests/agent/head/machines/desk.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing_desk;

namespace {

constexpr int kIdle = 60;      // seconds, after which a machine that nobody needs goes
constexpr int kBoot = 60;      // at most, until one runs, and as many until it joins
constexpr int kLongest = 300;  // a job
constexpr int kPlenty = 5000;  // from then on the cloud has enough

// A cloud that has now more, now fewer machines of a type, or none. Of a request two at a time are
// had, or are not.
struct Cloud {
  struct Instance {
    Machine machine;
    int runs;   // when it does, in seconds of the workload
    int joins;  // never: -1
  };
  std::mutex mutex;
  std::map<std::string, Instance> instances;  // by id
  std::map<std::string, int> stock;           // of each type there may be so many now
  std::function<int(int, int)> dice;
  int now = 0;
  int made = 0;
  int refused = 0;

  int live(const std::string& type) const {
    return static_cast<int>(
        std::count_if(instances.begin(), instances.end(), [&](const auto& each) {
          return each.second.machine.type == type && is_live(each.second.machine.state);
        }));
  }
};

class CloudSource final : public MachineSource {
 public:
  explicit CloudSource(Cloud& cloud) : cloud_(cloud) {}

  std::vector<Machine> list() override {
    const std::lock_guard lock(cloud_.mutex);
    std::vector<Machine> machines;
    for (const auto& [id, each] : cloud_.instances) machines.push_back(each.machine);
    return machines;
  }
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override {
    const std::lock_guard lock(cloud_.mutex);
    constexpr std::size_t kTogether = 2;
    for (const Request& request : requests) {
      const std::size_t all = request.nodes.size();
      for (std::size_t from = 0; from < all; from += kTogether) {
        const std::size_t to = std::min(all, from + kTogether);
        const bool has =
            cloud_.live(request.type) + static_cast<int>(to - from) <= cloud_.stock[request.type];
        for (std::size_t i = from; i < to; ++i) tell(make(request, request.nodes[i], has));
      }
    }
  }
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override {
    const std::lock_guard lock(cloud_.mutex);
    for (const Machine& machine : machines) {
      cloud_.instances.at(machine.id).machine.state = MachineState::gone;
      tell({machine, std::nullopt});
    }
  }

 private:
  MachineOutcome make(const Request& request, const NodeId& node, bool has) {
    Machine machine;
    machine.joins = true;
    machine.node = node;
    machine.type = request.type;
    machine.launch = request.launch;
    machine.cluster = request.cluster;
    if (!has) {
      ++cloud_.refused;
      return {machine, Error(ErrorCode::failed, "InsufficientInstanceCapacity")};
    }
    machine.id = "i-" + std::to_string(++cloud_.made);
    machine.state = MachineState::pending;
    machine.created = std::chrono::system_clock::time_point(std::chrono::seconds(cloud_.now));
    const int runs = cloud_.now + cloud_.dice(0, kBoot);
    const bool never = cloud_.dice(1, 100) == 1;
    cloud_.instances[machine.id] = {machine, runs, never ? -1 : runs + cloud_.dice(0, kBoot)};
    return {machine, std::nullopt};
  }

  Cloud& cloud_;
};

// A queue of gangs on the machines that a keeper gets for it.
class Workload {
 public:
  explicit Workload(unsigned seed) : random_(seed) {
    cloud_.dice = [this](int from, int to) { return dice(from, to); };
    what_ = on_demand(dice(2, 8));
    what_.scaler = "/scaler";
    add_type("large", 16, dice(0, 4));
    add_type("small", 4, what_.types.front().max_workers);
    what_.types.erase(what_.types.begin());
    what_.max_workers = dice(1, what_.types.back().max_workers) + what_.types.front().max_workers;
    what_.types.back().count = dice(0, 1);
    if (dice(0, 1) == 1) what_.upscaling_speed = dice(0, 3) / 2.0;
    const int largest = std::min(what_.types.back().max_workers, what_.max_workers);
    for (int i = dice(1, 12); i > 0; --i) {
      Job job;
      job.waits.job = JobId("job-" + std::to_string(jobs_.size()));
      job.waits.order = static_cast<std::int64_t>(jobs_.size());
      const int nnodes = dice(1, largest);
      job.waits.demand.nnodes = {nnodes, nnodes};
      job.waits.demand.cpus = dice(1, 4);
      job.comes = dice(0, 300);
      job.takes = dice(1, kLongest);
      wanted_ += nnodes;
      jobs_.push_back(job);
    }
    desk_.other_source = [this] { return std::make_unique<CloudSource>(cloud_); };
    desk_.decide = [this](const MachinesToCome& machines) { return growth(machines); };
    desk_.want(what_);
  }

  // Until all jobs have ended and what they were run on has gone.
  void run() {
    for (; !is_over(); ++now_) {
      if (now_ == 40000) FAIL("it does not end");
      second();
    }
  }
  void check() const {
    INFO("made " << cloud_.made << ", refused " << cloud_.refused << ", wanted " << wanted_
                 << ", idle for " << idle_seconds_ << " s, one for " << longest_idle_);
    // Others come in place of those that ended, that came while the rest of their gang was refused,
    // or that had to wait too long since another job had passed.
    CHECK(cloud_.made <= wanted_ + ended_ + 2 * cloud_.refused + most());
    // One may wait until it is there, for the rest of its gang, for jobs that end.
    CHECK(longest_idle_ <= 2 * kBoot + kIdle + 3 * kLongest);
  }
  int idle_seconds() const { return idle_seconds_; }
  int busy_seconds() const { return busy_seconds_; }

 private:
  struct Job {
    WaitingJob waits;
    int comes = 0;
    int takes = 0;
    int ends = -1;  // it runs until then
    std::vector<PlacedShare> shares;
    bool is_over = false;
  };

  int dice(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  int most() const { return what_.types.back().max_workers; }

  void add_type(const std::string& name, double cpus, int most) {
    wire::WantedMachines::Type type = what_.types.front();
    type.name = name;
    type.max_workers = most;
    type.idle_timeout = std::chrono::seconds(kIdle);
    type.priority = name == "small" ? 1 : 0;
    type.cpus = cpus;
    type.gpus = 0;
    what_.types.push_back(type);
  }

  bool is_over() {
    const bool is_done =
        std::all_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.is_over; });
    if (!is_done) return false;
    const std::lock_guard lock(cloud_.mutex);
    int live = 0;
    for (const auto& type : what_.types) live += cloud_.live(type.name) - type.count;
    return live == 0;
  }

  NodeCapacity capacity(const NodeId& node) const {
    NodeCapacity one;
    one.node = node;
    one.usable = !desk_.drained.contains(node) && desk_.nodes.at(node) == Presence::here;
    one.cpus = types_.at(node) == "small" ? 4 : 16;
    one.memory = std::uint64_t{16} << 30;
    for (const Job& job : jobs_) {
      for (const PlacedShare& share : job.shares) {
        if (share.node == node) use(one, share);
      }
    }
    return one;
  }

  std::vector<NodeCapacity> capacities() const {
    std::vector<NodeCapacity> here;
    for (const auto& [node, presence] : desk_.nodes) {
      if (presence == Presence::here) here.push_back(capacity(node));
    }
    return here;
  }

  std::vector<WaitingJob> waiting() const {
    std::vector<WaitingJob> queue;
    for (const Job& job : jobs_) {
      if (job.comes <= now_ && !job.is_over && job.ends < 0) queue.push_back(job.waits);
    }
    return queue;
  }

  // As the head's engine: what is kept for gangs is nobody else's.
  Growth growth(const MachinesToCome& machines) {
    std::vector<NodeCapacity> here = capacities();
    Growth growth = decide_growth(here, {}, waiting(), machines);
    for (NodeCapacity& each : here) {
      const auto kept = growth.kept.find(each.node);
      if (kept == growth.kept.end()) continue;
      for (const PlacedShare& share : kept->second) use(each, share);
    }
    for (const auto& start : decide_queue(here, waiting(), 0).starts) begin(start);
    return growth;
  }

  void begin(const QueueDecision::Start& start) {
    for (Job& job : jobs_) {
      if (job.waits.job != start.job) continue;
      job.shares = start.shares;
      job.ends = now_ + job.takes;
      for (const PlacedShare& share : start.shares) desk_.busy.insert(share.node);
    }
  }

  // Its ranks end, and a job that was not done waits again.
  void end(Job& job, bool is_done) {
    job.is_over = is_done;
    job.ends = -1;
    job.shares.clear();
    desk_.busy.clear();
    for (const Job& each : jobs_) {
      for (const PlacedShare& share : each.shares) desk_.busy.insert(share.node);
    }
  }

  void second() {
    desk_.clock.advance(1s);
    if (now_ % pace_ == 0 || now_ == kPlenty) {
      const std::lock_guard lock(cloud_.mutex);
      for (const auto& type : what_.types) cloud_.stock[type.name] = dice(0, type.most() + 2);
      if (now_ >= kPlenty) cloud_.stock["small"] = 100;
    }
    bool news = false;
    for (Job& job : jobs_) {
      news = news || job.comes == now_;
      if (job.ends < 0 || job.ends > now_) continue;
      end(job, true);
      news = true;
    }
    std::vector<NodeId> came;
    std::vector<NodeId> went;
    move(came, went);
    for (const NodeId& node : went) lose(node);
    for (const NodeId& node : came) desk_.come(node.str());
    if (news) {
      desk_.keeper->needs();
      desk_.settle();
    }
    if (desk_.due) {
      desk_.due->first -= 1000ms;
      if (desk_.due->first <= 0ms) {
        desk_.due->first = 0ms;
        desk_.tick();
      }
    }
    count();
  }

  // What the cloud's machines do by themselves.
  void move(std::vector<NodeId>& came, std::vector<NodeId>& went) {
    const std::lock_guard lock(cloud_.mutex);
    cloud_.now = now_;
    for (auto& [id, each] : cloud_.instances) {
      if (!is_live(each.machine.state)) continue;
      if (each.runs <= now_) each.machine.state = MachineState::running;
      if (each.joins == now_ && desk_.begun.contains(each.machine.node)) {
        came.push_back(each.machine.node);
        types_[each.machine.node] = each.machine.type;
      } else if (each.joins == now_) {
        ++each.joins;  // it is not let in yet
      }
      if (each.joins < now_ && each.joins >= 0 && dice(1, 3000) == 1) {
        each.machine.state = MachineState::gone;
        each.machine.reason = "Server.SpotInstanceTermination";
        went.push_back(each.machine.node);
      }
    }
  }

  void lose(const NodeId& node) {
    ++ended_;
    for (Job& job : jobs_) {
      const bool has = std::any_of(job.shares.begin(), job.shares.end(),
                                   [&](const PlacedShare& share) { return share.node == node; });
      if (has) end(job, false);
    }
    desk_.goes(node.str(), Presence::lost);
  }

  void count() {
    const std::lock_guard lock(cloud_.mutex);
    int all = 0;
    bool is_fine = true;
    for (const auto& type : what_.types) {
      const int live = cloud_.live(type.name);
      is_fine = is_fine && live <= type.most();
      all += live;
    }
    if (!is_fine || all > std::max(what_.max_workers, what_.types.back().count)) {
      FAIL("more machines than there may be, in second " << now_);
    }
    for (const auto& [id, each] : cloud_.instances) {
      if (!is_live(each.machine.state)) continue;
      if (desk_.busy.contains(each.machine.node)) {
        idle_.erase(each.machine.node);
        ++busy_seconds_;
        continue;
      }
      ++idle_seconds_;
      if (cloud_.live(each.machine.type) > what_.types.back().count)
        longest_idle_ = std::max(longest_idle_, ++idle_[each.machine.node]);
    }
  }

  std::mt19937 random_;
  Cloud cloud_;
  Desk desk_;  // ends before the cloud
  wire::WantedMachines what_;
  std::vector<Job> jobs_;
  std::map<NodeId, std::string> types_;
  std::map<NodeId, int> idle_;  // since so many seconds
  int now_ = 0;
  int pace_ = dice(0, 1) == 1 ? 20 : 1000;  // seconds, in which the cloud has as many
  int wanted_ = 0;                          // nodes of all jobs
  int ended_ = 0;                           // machines, by themselves
  int idle_seconds_ = 0;
  int busy_seconds_ = 0;
  int longest_idle_ = 0;
};

}  // namespace

TEST_CASE("machines: random workloads end on a cloud that has not always enough") {
  log::open("test", "");  // by DTRAIN_LOG_LEVEL: a line for each machine would be many
  const char* wanted = std::getenv("DTRAIN_RANDOM_WORKLOADS");
  const unsigned workloads = wanted == nullptr ? 100 : static_cast<unsigned>(std::stoul(wanted));
  int idle = 0;
  int busy = 0;
  for (unsigned seed = 0; seed < workloads; ++seed) {
    INFO("seed " << seed);
    Workload workload(seed);
    workload.run();
    workload.check();
    idle += workload.idle_seconds();
    busy += workload.busy_seconds();
  }
  CHECK(idle < busy);  // booting included
  MESSAGE("idle for " << idle << " s, busy for " << busy << " s");
}

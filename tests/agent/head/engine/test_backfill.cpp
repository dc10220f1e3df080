#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <map>
#include <random>

#include "agent/head/engine/backfill.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;

namespace {

NodeCapacity cpu_node(const std::string& name, double cpus) {
  NodeCapacity capacity;
  capacity.node = NodeId(name);
  capacity.cpus = cpus;
  capacity.memory = std::uint64_t{16} << 30;
  return capacity;
}

WaitingJob waiting(const std::string& id, std::int64_t order, int nodes, int cpus,
                   std::optional<std::chrono::seconds> longest = std::nullopt) {
  JobSpec spec;
  spec.nnodes = {nodes, nodes};
  spec.nproc_per_node.number = cpus;
  spec.resources_given = true;
  return {JobId(id), 0, order, demand_of(spec), "", longest};
}

PlacedShare share(const std::string& name, double cpus) {
  return {NodeId(name), 0, static_cast<int>(cpus), cpus, 0, {}};
}

// a and b are taken for 100 s, c is free; `wide` wants all of a and b.
struct TwoOfThree {
  std::vector<NodeCapacity> nodes = {cpu_node("a", 4), cpu_node("b", 4), cpu_node("c", 2)};
  std::vector<RunningJob> running = {{{share("a", 4), share("b", 3)}, 100s}};

  TwoOfThree() {
    for (const RunningJob& job : running) take(nodes, job.shares);
  }
  QueueDecision with(const WaitingJob& small) const {
    return decide_queue(nodes, {waiting("wide", 1, 2, 4), small}, 0, running);
  }
};

}  // namespace

TEST_CASE("a small job starts before a large one that waits, where it cannot delay it") {
  TwoOfThree world;
  SUBCASE("it has ended by then") {
    world.nodes[2].usable = false;
    const QueueDecision d = world.with(waiting("small", 2, 1, 1, 90s));
    REQUIRE(d.starts.size() == 1);
    CHECK(d.starts[0].shares[0].node.str() == "b");
    CHECK(d.starts[0].reason ==
          "starts before wide, which needs 4 CPUs on each of 2 nodes: it ends by then");
    CHECK(d.reasons.at(JobId("wide")).starts_with("needs 4 CPUs"));
  }
  SUBCASE("it would not have ended by then, or nobody knows") {
    world.nodes[2].usable = false;
    for (const auto longest : {std::optional(99s), std::optional(200s), {}}) {
      const QueueDecision d = world.with(waiting("small", 2, 1, 1, longest));
      CHECK(d.starts.empty());
      CHECK(d.reasons.at(JobId("small")) == "waits behind wide (priority 0)");
    }
  }
  SUBCASE("beside it, for as long as it likes") {
    const QueueDecision d = world.with(waiting("small", 2, 1, 1));
    REQUIRE(d.starts.size() == 1);
    CHECK(d.starts[0].shares[0].node.str() == "c");
    CHECK(d.starts[0].reason ==
          "starts before wide, which needs 4 CPUs on each of 2 nodes: it takes nothing of that");
  }
  SUBCASE("a node that is too small for it is anybody's, though no end is known") {
    world.running[0].left.reset();
    CHECK(world.with(waiting("small", 2, 1, 1)).starts.size() == 1);
    CHECK(world.with(waiting("small", 2, 1, 1, 1s)).starts[0].shares[0].node.str() == "c");
    world.nodes[2].usable = false;
    CHECK(world.with(waiting("small", 2, 1, 1, 1s)).starts.empty());
  }
  SUBCASE("a surplus on a node that it can use already") {
    world.nodes[2].cpus = 5;
    world.running[0].left.reset();
    CHECK(world.with(waiting("small", 2, 1, 1)).starts.size() == 1);
    CHECK(world.with(waiting("small", 2, 1, 2)).starts.empty());
  }
}

TEST_CASE("the moment of a reservation") {
  std::vector<NodeCapacity> nodes = {cpu_node("a", 4), cpu_node("b", 4), cpu_node("c", 4)};
  const std::vector<RunningJob> running = {
      {{share("c", 4)}, 30s}, {{share("a", 4)}, std::nullopt}, {{share("b", 4)}, 70s}};
  for (const RunningJob& job : running) take(nodes, job.shares);
  const auto moment = [&](int count) {
    return Backfill(nodes, running, waiting("x", 1, count, 4), "needs").reserved();
  };
  CHECK(moment(1) == 30s);
  CHECK(moment(2) == 70s);
  CHECK_FALSE(moment(3).has_value());
}

TEST_CASE("only so many are looked at behind the one that waits") {
  std::vector<WaitingJob> queue = {waiting("wide", 0, 2, 4)};
  for (int i = 1; i <= 10000; ++i)
    queue.push_back(waiting("j" + std::to_string(i), i, 1, 1 + i % 3));
  std::vector<NodeCapacity> nodes;
  std::vector<RunningJob> running;
  for (int i = 0; i < 100; ++i) {
    nodes.push_back(cpu_node("node-" + std::to_string(i), i < 2 ? 4 : 3));
    running.push_back({{share(nodes.back().node.str(), 3)}, std::chrono::seconds(100 + i)});
  }
  for (const RunningJob& job : running) take(nodes, job.shares);
  const std::clock_t begin = std::clock();  // of the processor: other tests run beside it
  const QueueDecision d = decide_queue(nodes, queue, 0, running);
  const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(d.starts.empty());
  CHECK(d.reasons.at(JobId("j100")) == "waits behind wide (priority 0)");
  CHECK(d.reasons.at(JobId("j101")) == "waits for its turn, behind more than 100 others");
  CHECK(took < 1);  // some ms, optimized; every one of them placed anew would be hundreds
  MESSAGE("10000 waiting, 100 nodes: " << took * 1000 << " ms");
}

namespace {

// A cluster that lives through a queue by events: every start and end is a new decision.
struct Simulation {
  struct Job {
    WaitingJob waiting;
    int takes = 1;  // seconds, in truth
    int arrives = 0;
    int started = -1;
    std::vector<PlacedShare> shares;
  };
  std::vector<NodeCapacity> nodes;
  std::vector<Job> jobs;
  std::map<std::string, int> promised;  // by which the first of the queue is to start

  // Decides at `now`, after what has ended by then has been taken away.
  void decide(int now, std::size_t depth) {
    std::vector<NodeCapacity> free = nodes;
    std::vector<RunningJob> running;
    std::vector<WaitingJob> queue;
    for (const Job& job : jobs) {
      if (job.started < 0) {
        if (job.arrives <= now) queue.push_back(job.waiting);
      } else if (job.started + job.takes > now) {
        take(free, job.shares);
        RunningJob each{job.shares, std::nullopt};
        if (job.waiting.longest) {
          each.left = *job.waiting.longest - std::chrono::seconds(now - job.started);
        }
        running.push_back(std::move(each));
      }
    }
    const QueueDecision decision = decide_queue(free, queue, 0, running, depth);
    for (const QueueDecision::Start& start : decision.starts) {
      Job& job = of(start.job);
      job.started = now;
      job.shares = start.shares;
      take(free, start.shares);
      running.push_back({start.shares, job.waiting.longest});
      for (const NodeCapacity& each : free) CHECK(each.cpus_used <= each.cpus + 1e-6);
    }
    promise(now, free, running, queue, decision);
  }

  // What is left in the queue has a first one: it is promised its moment once.
  void promise(int now, const std::vector<NodeCapacity>& free,
               const std::vector<RunningJob>& running, const std::vector<WaitingJob>& queue,
               const QueueDecision& decision) {
    for (const WaitingJob& each : queue) {
      if (!decision.reasons.contains(each.job)) continue;
      const auto moment = Backfill(free, running, each, "").reserved();
      if (moment && !promised.contains(each.job.str())) {
        promised[each.job.str()] = now + static_cast<int>(moment->count());
      }
      return;
    }
  }

  Job& of(const JobId& id) {
    return *std::find_if(jobs.begin(), jobs.end(),
                         [&](const Job& job) { return job.waiting.job == id; });
  }

  int next(int now) const {
    int first = std::numeric_limits<int>::max();
    for (const Job& job : jobs) {
      if (job.arrives > now) first = std::min(first, job.arrives);
      const int end = job.started + job.takes;
      if (job.started >= 0 && end > now) first = std::min(first, end);
    }
    return first;
  }
};

enum class Ends : std::uint8_t { known, early, unknown, mixed };

Simulation random_queue(std::mt19937& random, Ends ends) {
  const auto pick = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  Simulation all;
  const int count = pick(2, 5);
  for (int i = 0; i < count; ++i) {
    all.nodes.push_back(cpu_node("n" + std::to_string(i), i < 2 ? 4 : pick(1, 4)));
  }
  int arrives = 0;
  for (int i = 0; i < 20; ++i) {
    Simulation::Job job;
    const bool wide = pick(0, 3) == 0;
    // Every one fits when all is empty: the first two nodes have 4 CPUs.
    job.waiting = waiting("j" + std::to_string(i), i, wide ? 2 : 1, wide ? pick(2, 4) : pick(1, 4));
    job.takes = pick(1, 60);
    arrives += pick(0, 1) * pick(0, 12);
    job.arrives = arrives;
    const bool known = ends != Ends::unknown && (ends != Ends::mixed || pick(0, 1) == 0);
    if (known) {
      job.waiting.longest =
          std::chrono::seconds(ends == Ends::known ? job.takes : job.takes + pick(0, 40));
    }
    all.jobs.push_back(std::move(job));
  }
  return all;
}

// When the first of the queue at `now` starts, if nothing overtakes it from now on.
int start_without(Simulation from, int now, const JobId& first) {
  for (; from.of(first).started < 0; now = from.next(now)) from.decide(now, 0);
  return from.of(first).started;
}

}  // namespace

TEST_CASE("random queues: the first one that waits is never delayed") {
  std::mt19937 random(20261122);
  int overtaken = 0;
  for (const Ends ends : {Ends::known, Ends::early, Ends::unknown, Ends::mixed}) {
    CAPTURE(static_cast<int>(ends));
    for (int round = 0; round < 15; ++round) {
      CAPTURE(round);
      Simulation with = random_queue(random, ends);
      std::map<std::string, int> without;  // of each that was once the first to wait
      for (int now = 0; now != std::numeric_limits<int>::max(); now = with.next(now)) {
        Simulation before = with;
        with.decide(now, kBackfillDepth);
        // The first that still waits is so without overtakers too: what stood before it has
        // started.
        const auto first = std::find_if(
            with.jobs.begin(), with.jobs.end(),
            [&](const Simulation::Job& job) { return job.started < 0 && job.arrives <= now; });
        if (first == with.jobs.end()) continue;
        const std::string id = first->waiting.job.str();
        for (auto later = first + 1; later != with.jobs.end(); ++later) {
          overtaken += later->started == now ? 1 : 0;
        }
        if (!without.contains(id)) without[id] = start_without(before, now, first->waiting.job);
      }
      for (const auto& each : with.promised) {
        const auto& id = each.first;
        const auto& moment = each.second;
        CAPTURE(id);
        CHECK(with.of(JobId(id)).started <= moment);
      }
      // With ends that come as they were told, or of which nothing is known, not by a second.
      if (ends == Ends::known || ends == Ends::unknown) {
        for (const auto& each : without) {
          const auto& id = each.first;
          const auto& moment = each.second;
          CAPTURE(id);
          CHECK(with.of(JobId(id)).started <= moment);
        }
      }
      for (const Simulation::Job& job : with.jobs) CHECK(job.started >= job.arrives);
    }
  }
  CHECK(overtaken > 50);  // or it says nothing
}

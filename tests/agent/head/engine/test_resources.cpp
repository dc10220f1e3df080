#include <doctest/doctest.h>

#include <algorithm>

#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;

TEST_CASE(
    "a job's memory goes to its nodes, and being killed for it is the cause, whatever head ends "
    "it") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.resources.memory = std::uint64_t{1} << 20;
  const JobId id = world.submit(spec);
  CHECK(world.started("node-0", id, 1).rank_memory == std::uint64_t{1} << 20);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  wire::RankExited killed;
  killed.exit.signal = 9;
  killed.time = world.clock.wall();
  killed.cause = "killed for memory: it used 1.0 MiB of 1.0 MiB";
  world.say("node-0", id, 1, killed);
  world.settle();
  world.restart();
  world.join("node-0", {{id, 1}});
  world.finish("node-0", id, 1, Outcome::failed, "rank 0");
  world.until([&] { return world.state(id) == "failed"; });
  const auto job = world.engine->job(id);
  CHECK(job.at("error").at("cause") == killed.cause);
  CHECK(job.at("reason") == "rank 0 on node-0: signal 9 (SIGKILL), " + killed.cause);
  CHECK(job.at("exit_code") == 137);
}

TEST_CASE("memory that an older node agent knows nothing of is said not to be enforced") {
  World world;
  NodeInfo older;
  older.node = NodeId("node-0");
  older.address = "10.0.0.0";
  older.cpus = 4;
  older.memory = std::uint64_t{1} << 30;
  older.features = {"prepare"};
  world.engine->joined(older);
  JobSpec spec = World::spec();
  spec.resources.memory = std::uint64_t{1} << 20;
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.settle();
  std::string said;
  for (const JobNews& each : world.news) said += each.frame.dump() + "\n";
  CHECK(said.find("node-0: memory is not enforced: its agent is older") != std::string::npos);
}

TEST_CASE("quarters of one GPU: four jobs at a time, after a restart of the head too") {
  World world(0);
  NodeInfo info = World::info_of("node-0");
  info.gpus = 1;
  const auto come = [&](const std::vector<JobId>& jobs) {
    for (const JobId& job : jobs) info.attempts.emplace_back(job, 1);
    world.engine->joined(info);
    world.beat("node-0");
  };
  come({});
  JobSpec spec = World::spec();
  spec.resources.gpu.emplace().parts = 2500;
  spec.resources_given = true;
  std::vector<JobId> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(world.submit(spec));
  for (int i = 0; i < 4; ++i) {
    const wire::AttemptSpec start = world.started("node-0", jobs[static_cast<std::size_t>(i)], 1);
    CHECK(start.gpus == std::vector<int>{0});
    CHECK(start.gpus_assigned);
  }
  world.settle();
  const auto waits = [&] {
    for (std::size_t i = 4; i < 6; ++i) CHECK_FALSE(world.was_started(jobs[i], 1));
    CHECK(world.engine->job(jobs[4]).at("reason") ==
          "needs 0.25 of a GPU on a node; node-0 has 0 of 1 GPU with 0.25 free");
    CHECK(world.engine->status().at("nodes").at(0).at("gpus_used") == nlohmann::json{{"0", 1}});
  };
  waits();
  CHECK(world.engine->job(jobs[0]).at("attempts").at(0).at("nodes").at(0).at("gpu_part") == 0.25);
  world.restart();
  come({jobs.begin(), jobs.begin() + 4});
  world.settle();
  waits();
  world.start_ranks("node-0", jobs[1], 1, 0, 1);
  world.exit_rank("node-0", jobs[1], 1, 0, 0);
  world.finish("node-0", jobs[1], 1, Outcome::succeeded);
  CHECK(world.started("node-0", jobs[4], 1).gpus == std::vector<int>{0});
  world.settle();
  CHECK_FALSE(world.was_started(jobs[5], 1));
  // Two ranks of a job would want two GPUs.
  spec.nproc_per_node.number = 2;
  CHECK_THROWS_WITH_AS(world.engine->check_fits(spec),
                       "it can never run on this cluster, even when nothing else does: it needs "
                       "0.25 of each of 2 GPUs (its ranks share none) on a node; node-0 has 1 of 1 "
                       "GPU with 0.25 free",
                       Error);
}

TEST_CASE("CPUs of its own are asked of the node, and of an older one said not to be given") {
  World world(1);
  NodeInfo older = World::info_of("node-0");
  std::erase(older.features, "cpu_bind");
  world.engine->joined(older);
  world.beat("node-0");
  JobSpec spec = World::spec();
  spec.resources.cpu = 2;
  spec.resources_given = true;
  const wire::AttemptSpec unbound = world.started("node-0", world.submit(spec), 1);
  CHECK(unbound.rank_cpus == 0);
  CHECK(unbound.rank_threads == 2);
  spec.cpu_bind = CpuBind::cores;
  const JobId id = world.submit(spec);
  CHECK(world.started("node-0", id, 1).rank_cpus == 2);
  world.settle();
  const auto says = [&](const JobId& job) {
    const auto all = world.messages(job);
    return std::count(all.begin(), all.end(),
                      "node-0: ranks are not bound to CPUs: its agent is older than the head's");
  };
  CHECK(says(id) == 1);
  World newer(0);
  newer.join("node-0");
  const JobId bound = newer.submit(spec);
  CHECK(newer.started("node-0", bound, 1).rank_cpus == 2);
  newer.settle();
  CHECK(newer.messages(bound).size() > 0);
  for (const std::string& each : newer.messages(bound))
    CHECK(each.find("bound") == std::string::npos);
}

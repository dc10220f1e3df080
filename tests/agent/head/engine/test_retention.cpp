#include <doctest/doctest.h>

#include <fstream>

#include "agent/head/engine/retention.hpp"
#include "launcher/core/files.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using namespace std::chrono_literals;

namespace {

constexpr auto kDay = std::chrono::hours(24);

// A job that has ended, with so many bytes in the head's own storage.
JobId ended_job(World& world, std::size_t bytes) {
  const JobId id = world.submit(World::spec());
  world.run_through("node-0", id, 1, 0);
  world.until([&] { return world.state(id) == "succeeded"; });
  const fs::path folder = world.options.root.storage(id) / "checkpoints/checkpoint_000000";
  make_folders(folder);
  std::ofstream(folder / "model") << std::string(bytes, 'x');
  return id;
}

std::size_t jobs_left(World& world) {
  return world.engine->jobs().at("jobs").size();
}

}  // namespace

TEST_CASE("nothing that a job left is deleted while nobody has asked for it") {
  World world;
  world.join("node-0");
  const JobId id = ended_job(world, 1000);
  world.advance(400 * kDay);
  world.advance(2h);
  world.restart();
  world.advance(2h);
  REQUIRE(jobs_left(world) == 1);
  CHECK(fs::exists(world.options.root.storage(id) / "checkpoints/checkpoint_000000/model"));
}

TEST_CASE("which ended jobs the settings let go, and why") {
  const Monotonic now{365 * kDay};
  const auto ended = [&](const std::string& id, int days, std::uint64_t bytes) {
    return EndedJob{JobId(id), now - days * kDay, bytes};
  };
  const std::vector<EndedJob> jobs{ended("new", 1, 60), ended("old", 40, 60),
                                   ended("empty", 20, 0)};
  const auto names = [&](const StorageSpec& settings) {
    std::vector<std::string> list;
    for (const Forgetting& each : jobs_to_forget(jobs, now, settings)) {
      list.push_back(each.job.str());
    }
    return list;
  };
  using Jobs = std::vector<std::string>;
  CHECK(names({}).empty());
  CHECK(names({.retention_days = 30}) == Jobs{"old"});
  CHECK(names({.retention_days = 10}) == Jobs{"old", "empty"});
  CHECK(names({.retention_size = 120}).empty());
  CHECK(names({.retention_size = 100}) == Jobs{"old"});
  CHECK(names({.retention_size = 10}) == Jobs{"old", "new"});
  CHECK(jobs_to_forget(jobs, now, {.retention_days = 30}).front().reason ==
        "it ended 40 days ago, and retention.days is 30");
  CHECK(jobs_to_forget(jobs, now, {.retention_size = 100}).front().reason ==
        "jobs that had ended filled 120 B, and retention.size is 100 B");
  // What another job needs counts and stays.
  std::vector<EndedJob> held = jobs;
  held[1].held = true;
  REQUIRE(jobs_to_forget(held, now, {.retention_size = 100}).size() == 1);
  CHECK(jobs_to_forget(held, now, {.retention_size = 100}).front().job.str() == "new");
}

TEST_CASE("a disk that fills is told of long before it is full, with the way out") {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  CHECK(disk_warnings({}).empty());
  CHECK(disk_warnings({100 * kGiB, 16 * kGiB, 10 * kGiB}).empty());
  const auto low = disk_warnings({100 * kGiB, 14 * kGiB, 70 * kGiB});
  REQUIRE(low.size() == 1);
  CHECK(low.front() ==
        "the head's disk has 14.0 GiB free of 100.0 GiB, and holds 70.0 GiB of jobs that have "
        "ended: dtrain prune clears what no job needs, dtrain rm JOB a job");
  const auto large = disk_warnings({100 * kGiB, 40 * kGiB, 52 * kGiB});
  REQUIRE(large.size() == 1);
  CHECK(large.front().find("52 % of it") != std::string::npos);
}

TEST_CASE("what the user has set is forgotten, a job that another waits for is not") {
  World world;
  world.join("node-0");
  const JobId old = ended_job(world, 1000);
  JobSpec next = World::spec("next");
  next.after = {old.str()};
  next.nnodes = {7, 7};
  const JobId waits = world.submit(next);
  CHECK_THROWS_WITH_AS(
      world.engine->remove(old, nullptr),
      doctest::Contains((waits.str() + " waits to come after " + old.str()).c_str()), Error);
  world.engine->set_storage({.retention_days = 30});
  world.advance(31 * kDay);
  world.advance(2h);
  CHECK(jobs_left(world) == 2);
  world.engine->stop(waits, std::nullopt, nullptr);
  world.until([&] { return world.state(waits) == "stopped"; });
  world.until([&] {  // an earlier look may still be under way
    world.advance(10min);
    return jobs_left(world) == 1;
  });
  world.until([&] { return !fs::exists(world.options.root.storage(old)); });
}

TEST_CASE("old jobs are forgotten one after another, each when the last is durable") {
  World world;
  world.join("node-0");
  for (int i = 0; i < 3; ++i) ended_job(world, 1000);
  world.engine->set_storage({.retention_days = 30});
  world.settle();
  world.shut_door();
  world.advance(31 * kDay);
  world.until([&] {  // an earlier look may still be under way
    world.advance(10min);
    return jobs_left(world) < 3;
  });
  for (int i = 0; i < 3; ++i) {  // another look
    world.advance(2h);
    world.settle();
  }
  CHECK(jobs_left(world) == 2);
  SUBCASE("all of them") {
    world.open_door();
    world.until([&] { return jobs_left(world) == 0; });
  }
  SUBCASE("until the setting is taken back") {
    world.engine->set_storage({});
    world.open_door();
    world.settle();
    world.advance(2h);
    world.settle();
    CHECK(jobs_left(world) == 2);
  }
}

TEST_CASE("a date that is set ahead makes no job old") {
  World world;
  world.join("node-0");
  const JobId id = ended_job(world, 1000);
  world.settle();
  world.until([&] { return fs::exists(world.options.root.clock()); });
  world.clock.set_wall(400 * kDay);
  world.options.storage.retention_days = 30;
  SUBCASE("while the head runs") {
    world.engine->set_storage(world.options.storage);
  }
  SUBCASE("while it is away") {
    world.restart();
  }
  world.until([&] {  // a look has gone through to its end
    world.advance(1min);
    const nlohmann::json cluster = world.engine->status().at("cluster");
    return cluster.at("disk").at("ended_jobs").get<std::uint64_t>() > 0;
  });
  world.advance(2h);
  CHECK(jobs_left(world) == 1);
  // By the time that passes it goes, and is told to be as old as it is.
  world.advance(31 * kDay);
  world.until([&] {
    world.advance(10min);
    return jobs_left(world) == 0;
  });
  const nlohmann::json told = world.engine->status().at("cluster").at("forgotten");
  REQUIRE(told.size() == 1);
  CHECK(told[0].at("reason").get<std::string>().starts_with("it ended 3"));
}

TEST_CASE("what was forgotten by a setting is told, and its id says so") {
  World world;
  world.join("node-0");
  const JobId old = ended_job(world, 1000);
  world.engine->set_storage({.retention_size = 500});
  world.until([&] {  // its files may be measured only after the first look
    world.advance(1min);
    return jobs_left(world) == 0;
  });
  world.settle();
  const auto told = [&] { return world.engine->status().at("cluster").at("forgotten"); };
  REQUIRE(told().size() == 1);
  CHECK(told()[0].at("job") == old.str());
  CHECK(told()[0].at("reason").get<std::string>().find("retention.size is 500 B") !=
        std::string::npos);
  world.restart();
  CHECK(told().size() == 1);
  try {
    world.engine->job(old);
    FAIL("it is known");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_found);
    CHECK(error.message().find("was removed on 2026-") != std::string::npos);
    CHECK(error.message().find("retention.size") != std::string::npos);
  }
  world.advance(8 * kDay);
  CHECK(told().empty());
}

TEST_CASE("files of a removed job that a crash left are gone at the next start, no others") {
  World world;
  world.join("node-0");
  const JobId removed = ended_job(world, 1000);
  const JobId kept = ended_job(world, 1000);
  bool done = false;
  world.engine->remove(removed, [&](const nlohmann::json&) { done = true; });
  world.until([&] { return done; });
  world.until([&] { return !fs::exists(world.options.root.storage(removed)); });
  // As a head leaves it that is killed behind the commit; and what no head has ever heard of.
  const paths::HeadRoot& root = world.options.root;
  for (const fs::path& folder :
       {root.storage(removed), root.mirror(removed), root.storage(JobId("other-abcdef"))}) {
    make_folders(folder);
    std::ofstream(folder / "file") << "x";
  }
  world.restart();
  world.until(
      [&] { return !fs::exists(root.storage(removed)) && !fs::exists(root.mirror(removed)); });
  CHECK(fs::exists(root.storage(kept) / "checkpoints/checkpoint_000000/model"));
  CHECK(fs::exists(root.storage(JobId("other-abcdef")) / "file"));
}

TEST_CASE("a node that was away while a job was removed is told when it is back") {
  World world;
  world.join("node-0");
  const JobId removed = ended_job(world, 10);
  const JobId kept = ended_job(world, 10);
  world.engine->gone(NodeId("node-0"));
  bool done = false;
  world.engine->remove(removed, [&](const nlohmann::json&) { done = true; });
  world.until([&] { return done; });
  for (const bool anew : {false, true}) {
    if (anew) world.restart();
    world.forgotten.clear();
    NodeInfo info;
    info.node = NodeId("node-0");
    info.machine = "machine-node-0";
    info.jobs = {removed, kept, JobId("other-abcdef")};
    world.engine->joined(info);
    world.settle();
    REQUIRE(world.forgotten.size() == 1);
    CHECK(world.forgotten.front().second == removed);
  }
}

// What is said of a job's log_limit.

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using head::testing::World;

namespace {

std::vector<std::string> said(World& world, const JobId& job) {
  std::vector<std::string> found;
  for (const std::string& each : world.messages(job)) {
    if (each.starts_with("log_limit")) found.push_back(each);
  }
  return found;
}

}  // namespace

TEST_CASE("log limit: a node is told of it, and followers once that it bites") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  spec.log_limit = std::uint64_t{64} << 20;
  const JobId job = world.submit(spec);
  CHECK(world.started("node-0", job, 1).log_limit == std::uint64_t{64} << 20);
  CHECK(world.engine->log_limit(job) == std::uint64_t{64} << 20);
  CHECK(world.engine->log_limit(JobId("nothing-abcdef")) == 0);
  world.engine->logs_released("node-0", job, "");
  world.engine->logs_released("the head", job, "");
  world.until([&] { return said(world, job).size() == 1; });
  CHECK(said(world, job).front() ==
        "log_limit: of what a rank writes the newest 64.0 MiB are kept, of stdout and of stderr "
        "each; older output goes from now on. `log_limit` of the job YAML is how much, 0 keeps "
        "all");
  // Also by a head that is started anew, and of a job that has ended.
  world.restart();
  world.join("node-0", {{job, 1}});
  world.engine->logs_released("node-0", job, "");
  world.engine->logs_released("node-0", job, "Operation not supported");
  world.until([&] { return said(world, job).size() == 2; });
  CHECK(said(world, job).back() ==
        "log_limit cannot be held on node-0, whose logs grow: Operation not supported");
  world.engine->logs_released("node-0", job, "Operation not supported");
  world.settle();
  CHECK(said(world, job).size() == 2);
}

TEST_CASE("log limit: a job without one says nothing, and one that says nothing has one") {
  World world;
  world.join("node-0");
  JobSpec spec = World::spec();
  const JobId usual = world.submit(spec);
  CHECK(world.started("node-0", usual, 1).log_limit == std::uint64_t{1} << 30);
  world.run_through("node-0", usual, 1, 0);
  world.until([&] { return world.state(usual) == "succeeded"; });
  world.engine->logs_released("node-0", usual, "");
  world.until([&] { return said(world, usual).size() == 1; });
  spec.log_limit = 0;
  const JobId all = world.submit(spec);
  CHECK(world.started("node-0", all, 1).log_limit == 0);
  world.engine->logs_released("node-0", all, "");
  world.settle();
  CHECK(said(world, all).empty());
}

#include <doctest/doctest.h>

#include "agent/head/engine/moments.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using namespace std::chrono_literals;

namespace {

const Monotonic kBoot{std::chrono::hours(1)};
const WallTime kNoon{std::chrono::hours(1'000'000)};

}  // namespace

TEST_CASE("a moment is the same whatever was done to the clock since") {
  for (const auto jump : {3600s, -3600s}) {
    CAPTURE(jump.count());
    Moments moments("boot", "");
    CHECK(moments.see(kBoot, kNoon));
    CHECK_FALSE(moments.see(kBoot + 60s, kNoon + 60s));
    CHECK(moments.of(kNoon + 30s, kBoot + 60s) == kBoot + 30s);
    CHECK(moments.see(kBoot + 70s, kNoon + 70s + jump));
    CHECK_FALSE(moments.see(kBoot + 80s, kNoon + 80s + jump));
    const Moments next("boot", moments.dump());
    CHECK(next.of(kNoon + 30s, kBoot + 90s) == kBoot + 30s);
    CHECK(next.of(kNoon + 75s + jump, kBoot + 90s) == kBoot + 75s);
    CHECK(next.of(kNoon + 69s + jump, kBoot + 90s) == kBoot + 69s);  // before it was seen
    CHECK(next.of(kNoon + 95s + jump, kBoot + 90s) == kBoot + 90s);
  }
}

TEST_CASE("of a time before this boot only the wall clock is known") {
  Moments before("another boot", "");
  before.see(kBoot + 5000s, kNoon);
  Moments moments("boot", before.dump());
  CHECK(moments.see(kBoot, kNoon + 100s));
  CHECK(moments.of(kNoon, kBoot + 10s) == kBoot - 100s);
  CHECK(Moments("boot", "{").of(kNoon, kBoot) == kBoot);
}

TEST_CASE("what was known of the clock keeps no head from starting when it cannot be read") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.settle();
  const auto before = world.state(id);
  const fs::path kept = world.options.root.clock();
  world.until([&] { return fs::exists(kept); });
  fs::remove(kept);
  fs::create_directory(kept);
  world.restart();
  CHECK(world.state(id) == before);
  const auto far = std::to_string(INT64_MAX);
  CHECK(Moments("boot", R"({"boot": "boot", "spans": [{"from": 0, "ahead": )" + far + "}]}")
            .of(kNoon, kBoot) == kBoot);
}

TEST_CASE("jobs stay in the order in which they came, whatever the clock was set to") {
  World world;
  world.join("node-0", {}, 1);
  const JobId runs = world.submit(World::spec());
  world.started("node-0", runs, 1);
  world.start_ranks("node-0", runs, 1, 0, 1);
  const JobId first = world.submit(World::spec());
  world.clock.set_wall(-1800s);
  const JobId second = world.submit(World::spec());
  world.settle();
  world.restart();
  world.join("node-0", {{runs, 1}}, 1);
  const auto jobs = world.engine->jobs().at("jobs");
  REQUIRE(jobs.size() == 3);
  CHECK(jobs[0].at("job") == second.str());  // the newest
  CHECK(jobs[2].at("job") == runs.str());
  world.exit_rank("node-0", runs, 1, 0, 0);
  world.finish("node-0", runs, 1, wire::NodeFinished::Outcome::succeeded);
  world.started("node-0", first, 1);
  CHECK_FALSE(world.was_started(second, 1));
}

TEST_CASE("a clock that jumps while the head is away, or before, lets no timeout fire") {
  World world;
  world.join("node-0", {}, 1);
  JobSpec spec = World::spec();
  spec.timeout = 600s;
  const JobId runs = world.submit(spec);
  world.started("node-0", runs, 1);
  world.start_ranks("node-0", runs, 1, 0, 1);
  JobSpec other = World::spec();
  other.queue_timeout = 600s;
  const JobId waits = world.submit(other);
  world.settle();
  world.advance(5s);
  SUBCASE("before") {
    world.clock.set_wall(3600s);
    world.advance(5s);
    world.restart();
  }
  SUBCASE("while it is away") {
    world.clock.set_wall(3600s);
    world.restart();
  }
  SUBCASE("there and back") {
    world.clock.set_wall(-3600s);
    world.advance(5s);
    world.clock.set_wall(7200s);
    world.restart();
  }
  world.join("node-0", {{runs, 1}}, 1);
  world.settle();
  CHECK(world.state(runs) == "running");
  CHECK(world.state(waits) == "queued");
}

// Ranks that slow the others down: who is named, for what, and when.

#include <doctest/doctest.h>

#include "agent/head/engine/stragglers.hpp"
#include "launcher/core/text.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using head::testing::World;
using std::chrono::seconds;
using Outcome = wire::NodeFinished::Outcome;

namespace {

using Words = std::vector<std::string>;

// Seconds a step: of its own, which is what a step takes all of them but for waiting.
struct Parts {
  double data = 0.01;
  double compute = 0.16;
  double communication = 0.01;

  double own() const { return data + compute + communication; }
};

// Ranks that compute together, of which each has its own time.
struct Ranks {
  int count;
  int of_node;
  std::map<int, Parts> parts;
  std::map<int, wire::RankBeat> beats;
  Stragglers stragglers;
  Monotonic now{std::chrono::hours(1)};

  explicit Ranks(int ranks, int a_node = 8) : count(ranks), of_node(a_node) {
    for (int rank = 0; rank < count; ++rank) {
      parts[rank] = {};
      beats[rank].rank = rank;
      beats[rank].step = 0;
      beats[rank].step_times = wire::RankBeat::StepTimes{0, 0, 0, 0, 0, 0, {}, {}, {}};
    }
    beat(0);
  }

  // All do so many steps, then each sends a heartbeat; what is told then.
  Words beat(int steps) {
    double step = 0;
    for (const auto& [rank, its] : parts) step = std::max(step, its.own());
    now += std::chrono::milliseconds(static_cast<std::int64_t>(1000 * step * steps));
    Words told;
    for (int rank = 0; rank < count; ++rank) {
      wire::RankBeat& its = beats[rank];
      const Parts& mine = parts[rank];
      *its.step += steps;
      if (its.step_times) {
        its.step_times->steps += static_cast<std::uint64_t>(steps);
        its.step_times->seconds += steps * step;
        const auto add = [&](std::optional<double>& sum, double more) {
          if (sum) *sum += steps * more;
        };
        add(its.step_times->data, mine.data);
        add(its.step_times->compute, mine.compute);
        add(its.step_times->communication, mine.communication);
        add(its.step_times->wait, step - mine.own());
      }
      stragglers.heard(its, now);
      if ((rank + 1) % of_node != 0 && rank + 1 != count) continue;
      const int first = rank / of_node * of_node;
      for (std::string& each : stragglers.judge(NodeId("node-" + std::to_string(rank / of_node)),
                                                first, rank + 1 - first)) {
        told.push_back(std::move(each));
      }
    }
    return told;
  }
  Words beats_of(int steps, int times) {
    Words all;
    for (int i = 0; i < times; ++i) {
      for (std::string& each : beat(steps)) all.push_back(std::move(each));
    }
    return all;
  }
};

const std::string kSlow =
    "rank 5 on node-1 is slow: 410 ms a step of its own over the last 20, the median is 180 ms; "
    "the difference is data (230 ms of 230 ms)";

}  // namespace

TEST_CASE("times are told in two or three digits") {
  CHECK(short_time(0) == "0.00 ms");
  CHECK(short_time(0.00042) == "0.42 ms");
  CHECK(short_time(0.0083) == "8.3 ms");
  CHECK(short_time(0.412) == "412 ms");
  CHECK(short_time(1.5249) == "1.52 s");
  CHECK(short_time(75) == "75.0 s");
}

TEST_CASE("a rank whose own time is above 1.5 times the median for 20 steps is named, once") {
  Ranks ranks(8, 4);
  CHECK(ranks.beats_of(1, 40).empty());
  CHECK(ranks.stragglers.median().value() == doctest::Approx(0.18));
  ranks.parts[5].data += 0.23;
  // Until its mean over 20 steps is above 270 ms, and then for 20.
  Words told;
  int steps = 0;
  while (told.empty() && ++steps <= 45) told = ranks.beat(1);
  CHECK(told == Words{kSlow});
  CHECK(steps >= 20);
  CHECK(steps <= 35);
  CHECK(ranks.stragglers.pace(5)->slow);
  CHECK_FALSE(ranks.stragglers.pace(4)->slow);
  CHECK(ranks.beats_of(1, 200).empty());
  ranks.parts[5] = {};
  CHECK(ranks.beats_of(1, 80) ==
        Words{"rank 5 on node-1 is slow no more: 180 ms a step of its own, the median is 180 ms"});
  CHECK_FALSE(ranks.stragglers.pace(5)->slow);
  // Again: after twice as many steps.
  ranks.parts[5].compute += 0.5;
  CHECK(ranks.beats_of(1, 39).empty());
  told = ranks.beats_of(1, 20);
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("the difference is compute (500 ms of 500 ms)") != std::string::npos);
}

TEST_CASE("what a slow rank waits for is the part that makes most of the difference") {
  Ranks ranks(4);
  ranks.parts[1].communication += 0.3;
  ranks.parts[1].data += 0.1;
  const Words told = ranks.beats_of(2, 40);
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("; the difference is communication (300 ms of 400 ms)") != std::string::npos);
  // A program that says nothing of the parts.
  Ranks plain(4);
  for (auto& [rank, beat] : plain.beats) {
    beat.step_times->data = beat.step_times->compute = beat.step_times->communication = {};
  }
  plain.parts[1].compute += 0.3;
  const Words less = plain.beats_of(2, 40);
  REQUIRE(less.size() == 1);
  CHECK(less[0].ends_with("the median is 180 ms; what makes the difference is not known"));
}

TEST_CASE("1.5 times is not above it, a hair is no difference, one pause is no slowness") {
  Ranks ranks(4);
  ranks.parts[2].compute += 0.089;
  CHECK(ranks.beats_of(1, 100).empty());
  Ranks quick(4);
  for (auto& [rank, parts] : quick.parts) parts = {0, 0.001, 0};
  quick.parts[2].compute = 0.0019;
  CHECK(quick.beats_of(500, 40).empty());
  quick.parts[2].compute = 0.0021;
  CHECK(quick.beats_of(500, 40).size() == 1);
  // A minute among steps of 0.18 s, in steps that come one by one, and many in a heartbeat.
  for (const int steps : {1, 5, 500}) {
    Ranks pausing(4);
    CHECK(pausing.beats_of(steps, 30).empty());
    pausing.parts[3].data = 60;
    CHECK(pausing.beat(1).empty());
    pausing.parts[3] = {};
    CHECK(pausing.beats_of(steps, 60).empty());
  }
}

TEST_CASE("one step in four that takes long is slowness too") {
  Ranks ranks(4);
  Words told;
  for (int step = 0; step < 100; ++step) {
    ranks.parts[3].data = step % 4 == 0 ? 1 : 0.01;
    for (const std::string& each : ranks.beat(1)) told.push_back(each);
  }
  REQUIRE(told.size() == 1);
  CHECK(told[0].starts_with("rank 3 on node-0 is slow: "));
}

TEST_CASE("of two ranks the faster one is the measure") {
  Ranks ranks(2, 1);
  ranks.parts[0].compute += 0.12;
  const Words told = ranks.beats_of(1, 40);
  REQUIRE(told.size() == 1);
  CHECK(told[0].starts_with("rank 0 on node-0 is slow: 300 ms a step"));
}

TEST_CASE("all ranks of a node are one event, also where one comes to it later") {
  Ranks ranks(24);
  CHECK(ranks.beats_of(1, 30).empty());
  for (int rank = 8; rank < 15; ++rank) ranks.parts[rank].compute += 0.2;
  CHECK(ranks.beats_of(1, 10).empty());
  ranks.parts[15].compute += 0.2;
  Words told = ranks.beats_of(1, 60);
  REQUIRE(told.size() == 1);
  CHECK(told[0] ==
        "all 8 ranks of node-1 are slow: 380 ms a step of their own over the last 20, the median "
        "is 180 ms; the difference is compute (200 ms of 200 ms)");
  for (int rank = 8; rank < 16; ++rank) ranks.parts[rank] = {};
  told = ranks.beats_of(1, 80);
  // Where there are thousands of steps in a heartbeat too.
  Ranks quick(24);
  CHECK(quick.beats_of(5000, 10).empty());
  for (int rank = 8; rank < 15; ++rank) quick.parts[rank].compute += 0.2;
  quick.beats_of(5000, 2);
  quick.parts[15].compute += 0.2;
  const Words once = quick.beats_of(5000, 20);
  REQUIRE(once.size() == 1);
  CHECK(once[0].starts_with("all 8 ranks of node-1 are slow: "));
  CHECK(told == Words{"the ranks of node-1 are slow no more: 180 ms a step of their own, the "
                      "median is 180 ms"});
}

TEST_CASE("no more than eight are told at a time") {
  Ranks ranks(64, 32);
  for (int rank = 0; rank < 20; ++rank) ranks.parts[rank].data += 0.2;
  const Words told = ranks.beats_of(1, 80);
  REQUIRE(told.size() == 8);
  CHECK(told[7].ends_with("; of further slow ranks only dtrain status -v tells"));
  int slow = 0;
  for (int rank = 0; rank < 64; ++rank) slow += ranks.stragglers.pace(rank)->slow ? 1 : 0;
  CHECK(slow == 20);
  // As soon as those are slow no more, the others are.
  for (int rank = 0; rank < 8; ++rank) ranks.parts[rank] = {};
  CHECK(ranks.beats_of(1, 80).size() == 16);
}

TEST_CASE("sums lose nothing with heartbeats that are lost, and begin anew with a new process") {
  Ranks ranks(4);
  ranks.beats_of(1, 30);
  const auto before = ranks.beats[2].step_times;
  ranks.beats[2].step_times->steps += 30;
  ranks.beats[2].step_times->seconds += 30 * 0.18;
  *ranks.beats[2].step_times->compute += 30 * 0.16;
  ranks.stragglers.heard(ranks.beats[2], ranks.now);
  CHECK(ranks.stragglers.pace(2)->step == doctest::Approx(0.18));
  CHECK(*ranks.stragglers.pace(2)->compute == doctest::Approx(0.16));
  CHECK(*ranks.stragglers.pace(2)->own == doctest::Approx(0.18));
  ranks.beats[2].step_times = before;  // less than before
  ranks.stragglers.heard(ranks.beats[2], ranks.now);
  CHECK_FALSE(ranks.stragglers.pace(2).has_value());
  ranks.beat(3);
  CHECK(ranks.stragglers.pace(2)->steps == 3);
}

TEST_CASE("quantiles are the rank's own, or of the means between heartbeats") {
  Ranks ranks(2);
  ranks.beats_of(1, 18);
  ranks.parts[0].data += 0.09;
  ranks.beats_of(1, 2);
  const Pace ours = *ranks.stragglers.pace(1);
  CHECK(ours.steps == 20);
  CHECK(ours.p50 == doctest::Approx(0.18));
  CHECK(ours.p90 == doctest::Approx(0.18));
  CHECK(ours.max == doctest::Approx(0.27));
  CHECK(*ours.wait == doctest::Approx(2 * 0.09 / 20));
  ranks.beats[1].step_times->p50 = 1;
  ranks.beats[1].step_times->p90 = 2;
  ranks.beats[1].step_times->max = 3;
  ranks.beat(1);
  const Pace theirs = *ranks.stragglers.pace(1);
  CHECK(std::tuple(theirs.p50, theirs.p90, theirs.max) == std::tuple(1.0, 2.0, 3.0));
}

TEST_CASE("of ranks that say only their step nobody is named, nor of those that do not know") {
  Ranks ranks(4);
  for (auto& [rank, beat] : ranks.beats) beat.step_times.reset();
  ranks.stragglers = {};
  ranks.parts[3].data += 0.5;
  CHECK(ranks.beats_of(5, 40).empty());
  const Pace pace = *ranks.stragglers.pace(0);
  CHECK(pace.p50 == doctest::Approx(0.68));
  CHECK_FALSE(pace.own.has_value());
  CHECK_FALSE(pace.data.has_value());
  Ranks gpus(4);
  for (auto& [rank, beat] : gpus.beats) beat.step_times->wait.reset();
  gpus.parts[3].data += 0.5;
  CHECK(gpus.beats_of(5, 40).empty());
  CHECK_FALSE(gpus.stragglers.pace(3)->own.has_value());
  CHECK(*gpus.stragglers.pace(3)->data == doctest::Approx(0.51));
}

TEST_CASE("ranks that have ended are no measure, and steps that stand still say nothing") {
  Ranks ranks(3);
  ranks.parts[0].compute += 0.4;
  CHECK(ranks.beats_of(1, 60).size() == 1);
  ranks.stragglers.ended(0);
  CHECK(ranks.beats_of(1, 20).empty());
  CHECK_FALSE(ranks.stragglers.pace(0)->slow);
  const Pace before = *ranks.stragglers.pace(1);
  for (int i = 0; i < 100; ++i) ranks.stragglers.heard(ranks.beats[1], ranks.now);
  CHECK(ranks.stragglers.pace(1)->steps == before.steps);
}

TEST_CASE("numbers out of this world do no harm") {
  Ranks ranks(4);
  for (int i = 0; i < 40; ++i) {
    ranks.beats[1].step_times->seconds += 1e300;
    *ranks.beats[1].step_times->wait += i % 2 == 0 ? 1e300 : 1;
    ranks.beat(1);
  }
  CHECK(ranks.stragglers.pace(0)->step == doctest::Approx(0.18));
  CHECK(ranks.stragglers.pace(1)->steps == 20);
}

TEST_CASE("a heartbeat costs as much among 8,000 ranks as among 8") {
  const auto each = [](int count) {
    Ranks ranks(count);
    ranks.parts[count / 2].data += 0.3;
    const auto began = std::chrono::steady_clock::now();
    const Words told = ranks.beats_of(1, 40);
    REQUIRE(told.size() == 1);
    CHECK(told[0].find(" is slow: 480 ms") != std::string::npos);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
               .count() /
           (40 * count);
  };
  MESSAGE("8 ranks: " << each(8) << " us, 8,000: " << each(8000) << " us each");
}

namespace {

struct SteppingJob : World {
  JobId id;

  SteppingJob() : World(2) {
    join("node-0");
    join("node-1");
    JobSpec job = spec();
    job.nnodes = {2, 2};
    job.nproc_per_node.number = 2;
    id = submit(job);
    started("node-0", id, 1);
    say("node-0", id, 1, wire::MasterReady{29500});
    started("node-1", id, 1);
    start_ranks("node-0", id, 1, 0, 2);
    start_ranks("node-1", id, 1, 2, 2);
    until([&] { return state(id) == "running"; });
    settle();
  }
  void step(int rank, std::uint64_t steps, double data) {
    const auto each = static_cast<double>(steps);
    wire::RankBeat beat{rank, static_cast<std::int64_t>(steps), "compute", std::nullopt, {}};
    beat.step_times = wire::RankBeat::StepTimes{
        steps, 0.5 * each, data * each, 0.1 * each, 0.0, (0.4 - data) * each, 0.5, 0.6, 0.7};
    say(rank < 2 ? "node-0" : "node-1", id, 1, wire::RankBeats{{beat}});
  }
  int said(const std::string& part) { return World::said(id, part); }
};

}  // namespace

TEST_CASE("a slow rank is an event of its job, and the job shows the times of all") {
  SteppingJob world;
  for (std::uint64_t steps = 0; steps <= 60; steps += 2) {
    for (int rank = 0; rank < 4; ++rank) world.step(rank, steps, rank == 2 ? 0.35 : 0.05);
    world.advance(seconds(1));
  }
  world.settle();
  CHECK(world.said("rank 2 on node-1 is slow: 450 ms a step of its own over the last 20, the "
                   "median is 150 ms; the difference is data (300 ms of 300 ms)") == 1);
  CHECK(world.said(" is slow: ") == 1);
  const nlohmann::json ranks = world.engine->job(world.id).at("attempts")[0].at("ranks");
  const nlohmann::json& slow = ranks[2].at("step_times");
  CHECK(slow.at("slow") == true);
  CHECK(slow.at("steps") == 20);
  CHECK(slow.at("own").get<double>() == doctest::Approx(0.45));
  CHECK(slow.at("data").get<double>() == doctest::Approx(0.35));
  CHECK(slow.at("p90") == 0.6);
  CHECK(ranks[0].at("step_times").at("slow") == false);
  for (const char* node : {"node-0", "node-1"}) {
    world.finish(node, world.id, 1, Outcome::failed, "over");
  }
  world.until([&] { return world.state(world.id) == "failed"; });
  const nlohmann::json ended = world.engine->job(world.id).at("attempts")[0].at("ranks");
  for (const nlohmann::json& rank : ended) {
    CHECK_FALSE(rank.contains("step_times"));
  }
}

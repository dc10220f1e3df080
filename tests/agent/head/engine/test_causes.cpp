#include <doctest/doctest.h>

#include "agent/head/engine/causes.hpp"
#include "agent/head/engine/node_clock.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;

namespace {

Failure rank_at(int rank, const std::string& node, nanoseconds at,
                std::optional<nanoseconds> uncertain = 2ms) {
  Failure failure;
  failure.rank = rank;
  failure.node = NodeId(node);
  failure.what = "rank " + std::to_string(rank) + " on " + node + ": exit code 1";
  failure.clock = "machine of " + node;
  failure.at = at;
  if (uncertain) failure.offset = ClockOffset{0ns, *uncertain};
  failure.heard = 1h;
  failure.guess = at;
  return failure;
}

// Of the failures' ranks, -1 for a node: "3|5 1" are 3 and 5 first, and 1 later.
std::string order(const std::vector<Failure>& failures) {
  const Causes causes = decide_causes(failures);
  std::string text;
  for (const std::size_t each : causes.first) {
    text += (text.empty() ? "" : "|") + std::to_string(failures[each].rank.value_or(-1));
  }
  for (const std::size_t each : causes.later) {
    text += " " + std::to_string(failures[each].rank.value_or(-1));
  }
  return text;
}

}  // namespace

TEST_CASE("the root cause is the first by time across nodes, as far as clocks can tell") {
  CHECK(decide_causes({}).reason.empty());
  CHECK(decide_causes({rank_at(3, "a", 5ms)}).reason == "rank 3 on a: exit code 1");
  CHECK(
      decide_causes({rank_at(3, "a", 50ms), rank_at(5, "b", 10ms), rank_at(6, "c", 20ms)}).reason ==
      "rank 5 on b: exit code 1 (and 2 consequences)");
  // Their spans meet: nobody can tell.
  CHECK(
      decide_causes({rank_at(3, "a", 12ms), rank_at(5, "b", 10ms), rank_at(6, "c", 20ms)}).reason ==
      "rank 5 on b: exit code 1; at the same time, as far as clocks can tell (within 6 ms): "
      "rank 3 on a: exit code 1 (and 1 consequence)");
  // Of one machine the clock is exact, however little is known of its offset; what came after it
  // there is none of the first, also where another node's clock cannot tell.
  CHECK(order({rank_at(0, "a", 11ms), rank_at(1, "a", 10ms)}) == "1 0");
  CHECK(order({rank_at(0, "a", 11ms, std::nullopt), rank_at(1, "a", 10ms, std::nullopt)}) == "1 0");
  CHECK(order({rank_at(0, "a", 11ms), rank_at(1, "a", 10ms), rank_at(2, "b", 12ms)}) == "1|2 0");
  CHECK(order({rank_at(0, "a", 10ms), rank_at(1, "a", 10ms)}) == "0|1");
  // A clock that is ahead.
  Failure ahead = rank_at(4, "b", 1h + 10ms);
  ahead.offset->by = 1h;
  CHECK(order({rank_at(0, "a", 15ms), ahead}) == "4 0");
  // An error file of whole seconds.
  Failure loose = rank_at(4, "a", 1s);
  loose.loose = 1s;
  CHECK(order({loose, rank_at(0, "a", 400ms)}) == "0|4");
  CHECK(order({loose, rank_at(0, "a", 1s + 1ms)}) == "4 0");
}

TEST_CASE("a clock that was never measured is no ground for an order") {
  const Failure unknown = rank_at(5, "b", 10ms, std::nullopt);
  CHECK(decide_causes({rank_at(3, "a", 50ms), unknown}).reason ==
        "rank 5 on b: exit code 1; what came first is not known, since no clock's offset is of b: "
        "rank 3 on a: exit code 1");
  // What the head has heard before another failed was before it.
  Failure heard = unknown;
  heard.heard = 20ms;
  CHECK(order({rank_at(3, "a", 50ms), heard}) == "5 3");
  // Neither does the one nobody dates come first for that.
  Failure undated = unknown;
  undated.at.reset();
  CHECK(order({rank_at(3, "a", 5ms), undated}) == "3|5");
  // A clock that was set since it was measured: it happened before it was heard of.
  Failure ahead = rank_at(5, "b", 2h);
  ahead.heard = 20ms;
  CHECK(order({rank_at(3, "a", 50ms), ahead}) == "5 3");
}

TEST_CASE("clocks that contradict each other tell nothing: the first is what was heard first") {
  // By one machine's clock the one, by the clocks' offsets the other.
  Failure early = rank_at(0, "a", 10ms);
  early.offset = ClockOffset{-1s, 2ms};
  early.heard = 2h;
  CHECK(order({early, rank_at(1, "a", 20ms)}) == "1 0");
}

TEST_CASE("who says that a peer was gone is no root cause where anything else failed") {
  Failure word = rank_at(0, "a", 10ms);
  word.for_peer = true;
  CHECK(order({word, rank_at(1, "b", 400ms)}) == "1 0");
  CHECK(order({word}) == "0");
  Failure later = word;
  later.rank = 2;
  later.at = 11ms;
  CHECK(order({later, word}) == "0 2");
  CHECK(says_peer_gone("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:4242"));
  CHECK(says_peer_gone("rank 1 died: rank 0 was waiting for it in all_reduce"));
  CHECK_FALSE(says_peer_gone("ValueError: nan"));
}

TEST_CASE("a lost node explains what fails after its last word, and not what failed before") {
  Failure lost;
  lost.node = NodeId("b");
  lost.what = "b was lost: not heard of for 30 s";
  lost.at = lost.heard = lost.guess = 1s;
  lost.offset = ClockOffset{};
  CHECK(order({rank_at(0, "a", 20s), lost}) == "-1 0");
  CHECK(order({rank_at(0, "a", 900ms), lost}) == "0 -1");
  CHECK(order({rank_at(0, "a", 999ms), lost}) == "0|-1");
}

TEST_CASE("ten thousand failures are put in order") {
  std::vector<Failure> all;
  for (int i = 0; i < 10000; ++i) {
    all.push_back(rank_at(i, "node-" + std::to_string(i / 8), 10ms + i * 1ms, 1ms));
  }
  const Causes causes = decide_causes(all);
  CHECK(causes.first.size() == 1);
  CHECK(causes.later.size() == 9999);
  CHECK(causes.reason.size() < 400);
}

TEST_CASE("a node's clock: of its last measurements the best one, less sure with age") {
  NodeClock clock;
  CHECK_FALSE(clock.at(1s).has_value());
  clock.add(0ms, 1h + 10ms, 1h + 10ms, 20ms);
  CHECK(clock.at(20ms)->by == 1h);
  CHECK(clock.at(20ms)->uncertain >= 10ms);
  CHECK(clock.at(20ms)->uncertain < 11ms);
  CHECK(clock.at(100s + 20ms)->uncertain >= 20ms);
  // A faster exchange counts at once; a slow one after it does not, until the old one is worth
  // less.
  clock.add(5s, 1h + 5s + 2ms, 1h + 5s + 2ms, 5s + 1ms);
  CHECK(clock.at(5s + 1ms)->uncertain < 1ms);
  CHECK(clock.at(5s + 1ms)->by == 1h + 1500us);
  clock.add(10s, 1h + 10s + 100ms, 1h + 10s + 100ms, 10s + 200ms);
  CHECK(clock.at(10s + 200ms)->by == 1h + 1500us);
  // It was set: what was measured before counts no more.
  clock.add(15s, 15s + 20ms, 15s + 20ms, 15s + 40ms);
  CHECK(clock.at(16s)->by == 0s);
  CHECK(clock.at(16s)->uncertain > 20ms);
  // An answer that waited, as a heartbeat does, is less sure by what clocks part meanwhile.
  NodeClock other;
  other.add(0s, 0s, 5s, 5s);
  CHECK(other.at(5s)->uncertain == 500us);
  // No times of one exchange.
  NodeClock none;
  none.add(5s, 5s, 4s, 6s);
  none.add(5s, 5s, 7s, 6s);
  none.add(5s, 4s, 4s, 4s);
  CHECK_FALSE(none.at(6s).has_value());
}

namespace {

struct TwoNodes : World {
  explicit TwoNodes(bool known) : World(2) {
    clocks_known = known;
    join("node-0");
    join("node-1");
    JobSpec two = spec();
    two.nnodes = {2, 2};
    two.resources.cpu = 4;
    job = submit(two);
    started("node-0", job, 1);
    say("node-0", job, 1, wire::MasterReady{29500});
    started("node-1", job, 1);
    start_ranks("node-0", job, 1, 0, 1);
    start_ranks("node-1", job, 1, 1, 1);
    settle();
  }

  void fail(const std::string& node, int rank, nanoseconds by_its_clock, double error_time = 0) {
    wire::RankExited body;
    body.rank = rank;
    body.exit.code = 1;
    body.time = clock.wall();
    body.boot_time = by_its_clock;
    body.error_time = error_time;
    say(node, job, 1, body);
    finish(node, job, 1, wire::NodeFinished::Outcome::failed);
  }
  nlohmann::json attempt() { return engine->job(job).at("attempts").at(0); }

  JobId job;
};

}  // namespace

TEST_CASE("which node's rank failed first is told by measured clocks, not by who is heard first") {
  TwoNodes world(true);
  // Its clock says an hour more, and that is known to a millisecond; the time of the day is set
  // meanwhile, which says nothing.
  world.beat("node-1", 1h, 1ms);
  world.clock.set_by(-2h);
  world.beat("node-0", 0h, 1ms);
  const nanoseconds now = world.clock.boot();
  world.advance(1s);
  world.fail("node-0", 0, now + 20ms);
  world.fail("node-1", 1, now + 1h + 10ms);
  world.until([&] { return world.state(world.job) == "failed"; });
  CHECK(world.attempt().at("reason") == "rank 1 on node-1: exit code 1 (and 1 consequence)");
  const nlohmann::json job = world.engine->job(world.job);
  CHECK(job.at("error").at("message") == "rank 1 on node-1: exit code 1 (and 1 consequence)");
  CHECK(job.at("error").at("rank") == 1);
  const nlohmann::json causes = world.attempt().at("causes");
  CHECK(causes.at("count") == 2);
  CHECK(causes.at("listed").at(0).at("role") == "root");
  CHECK(causes.at("listed").at(0).at("rank") == 1);
  CHECK(causes.at("listed").at(0).at("after_ms") == 0);
  CHECK(causes.at("listed").at(1).at("role") == "consequence");
  CHECK(causes.at("listed").at(1).at("after_ms") == 10);
  CHECK(causes.at("listed").at(0).at("uncertainty_ms").get<double>() >= 1);
  CHECK(causes.at("listed").at(0).at("uncertainty_ms").get<double>() < 2);
  CHECK(causes.at("listed").at(1).at("time").get<std::string>().starts_with("2026-01-02T01:04:05"));
  // Known to the next head too.
  world.restart();
  CHECK(world.attempt().at("causes") == causes);
}

TEST_CASE("an error file whose time is no time says nothing of when it was") {
  TwoNodes world(true);
  world.beat("node-0", 0h, 1ms);
  world.beat("node-1", 0h, 1ms);
  const nanoseconds now = world.clock.boot();
  world.advance(1s);
  world.fail("node-0", 0, now + 20ms, 2e10);
  world.fail("node-1", 1, now + 10ms, 1e300);
  world.until([&] { return world.state(world.job) == "failed"; });
  CHECK(world.attempt().at("reason") == "rank 1 on node-1: exit code 1 (and 1 consequence)");
}

TEST_CASE("a head that dies between two failures still knows when the first one was") {
  TwoNodes world(true);
  world.clock.advance(1s);
  const nanoseconds now = world.clock.boot();
  wire::RankExited body;
  body.rank = 0;
  body.exit.code = 1;
  body.time = world.clock.wall();
  body.boot_time = now - 10ms;
  world.say("node-0", world.job, 1, body);
  world.settle();
  world.restart();
  world.clock.advance(1s);
  world.join("node-0", {{world.job, 1}});
  world.join("node-1", {{world.job, 1}});
  world.fail("node-1", 1, now - 50ms);
  world.finish("node-0", world.job, 1, wire::NodeFinished::Outcome::failed);
  world.until([&] { return world.state(world.job) == "failed"; });
  CHECK(world.attempt().at("reason") == "rank 1 on node-1: exit code 1 (and 1 consequence)");
}

TEST_CASE("nodes of an older dtrain do not say how their clocks are: that is said") {
  TwoNodes world(false);
  world.fail("node-0", 0, 0ns);
  world.fail("node-1", 1, 0ns);
  world.until([&] { return world.state(world.job) == "failed"; });
  CHECK(world.attempt().at("reason") ==
        "rank 0 on node-0: exit code 1; what came first is not known, since no clock's offset is "
        "of node-0, node-1: rank 1 on node-1: exit code 1");
  CHECK(world.attempt().at("causes").at("listed").at(1).at("role") == "unknown");
  CHECK(world.attempt().at("causes").at("listed").at(1).at("time") == nullptr);
}

TEST_CASE(
    "an older supervisor says only the time of the day, an error file perhaps whole seconds") {
  TwoNodes world(true);
  world.clock.advance(10s);
  const double now = std::chrono::duration<double>(world.clock.wall().time_since_epoch()).count();
  world.fail("node-0", 0, 0ns);
  world.fail("node-1", 1, 0ns, now - 5);
  world.until([&] { return world.state(world.job) == "failed"; });
  CHECK(world.attempt().at("reason") == "rank 1 on node-1: exit code 1 (and 1 consequence)");
  const nlohmann::json root = world.attempt().at("causes").at("listed").at(0);
  CHECK(root.at("uncertainty_ms").get<double>() > 500);
  CHECK(root.at("uncertainty_ms").get<double>() < 510);
}

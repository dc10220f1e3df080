// Attempts whose ranks get no further: who lags, and what follows.

#include <doctest/doctest.h>

#include "agent/head/engine/hang.hpp"
#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using head::testing::World;
using std::chrono::minutes;
using std::chrono::seconds;
using Collective = wire::RankBeat::Collective;
using Outcome = wire::NodeFinished::Outcome;

namespace {

const Monotonic kStart{std::chrono::hours(1)};

Collective inside(std::uint64_t sequence, const std::string& name = "all_reduce",
                  std::optional<std::uint64_t> bytes = 4096) {
  return {sequence, name, bytes, std::nullopt, false};
}
Collective out_of(std::uint64_t sequence, const std::string& name = "all_reduce") {
  return {sequence, name, 4096, std::nullopt, true};
}

// Places, eight on a node, of which nothing is heard but what a test says.
struct Places {
  std::map<int, RankPlace> places;

  explicit Places(int count) {
    for (int rank = 0; rank < count; ++rank) {
      places[rank].node = NodeId("node-" + std::to_string(rank / 8));
      places[rank].beat.rank = rank;
    }
  }
  Places& at(int rank, std::int64_t step, std::optional<Collective> call = std::nullopt,
             const std::string& phase = "", Monotonic heard = kStart + seconds(295)) {
    places[rank].beat = {rank, step, phase, std::move(call)};
    places[rank].heard = heard;
    return *this;
  }
  Places& all(std::int64_t step, const std::optional<Collective>& call = std::nullopt,
              const std::string& phase = "") {
    for (const auto& entry : places) at(entry.first, step, call, phase);
    return *this;
  }
  // Five minutes after anything moved, at 00:10:00Z.
  std::string hang() const {
    const auto found =
        find_hang(places, kStart, minutes(5), kStart + minutes(5), WallTime(minutes(10)));
    return found ? found->str() : "none";
  }
};

const std::string kNone = "no progress for 5 m 00 s: ";

}  // namespace

TEST_CASE("no hang before the limit, and none without one") {
  const Places ranks = Places(2).all(3, inside(7));
  const auto after = [&](seconds passed, std::optional<std::chrono::nanoseconds> limit) {
    return find_hang(ranks.places, kStart, limit, kStart + passed, WallTime()).has_value();
  };
  CHECK_FALSE(after(seconds(59), seconds(60)));
  CHECK(after(seconds(60), seconds(60)));
  CHECK_FALSE(after(std::chrono::hours(24), std::nullopt));
}

TEST_CASE("ranks that have not entered the collective in which the others wait") {
  Places ranks = Places(8).all(1042, inside(1042));
  ranks.at(5, 1041, out_of(1041), "data");
  CHECK(ranks.hang() == kNone +
                            "rank 5 on node-0 (step 1041, data) has not entered "
                            "all_reduce #1042; the other 7 wait in it");
  ranks.at(3, 1041, out_of(1041));
  CHECK(ranks.hang() == kNone +
                            "ranks 3 and 5 on node-0 have not entered all_reduce #1042; "
                            "the other 6 wait in it");
  ranks.at(0, 1042, out_of(1042));
  CHECK(ranks.hang() == kNone +
                            "ranks 3 and 5 on node-0 have not entered all_reduce #1042; "
                            "the other 6 have entered it");
  Places two = Places(2).all(0, inside(1, "barrier", std::nullopt));
  two.places[1].beat.collective.reset();
  two.places[1].beat.step.reset();
  CHECK(two.hang() == kNone + "rank 1 on node-0 has not entered barrier #1; the other waits in it");
}

TEST_CASE("thousands of ranks make no long sentence") {
  Places ranks = Places(8000).all(9, inside(5));
  for (const int rank : {3, 5, 9, 700, 7001}) ranks.at(rank, 9, out_of(4));
  CHECK(ranks.hang() == kNone +
                            "ranks 3, 5 and 3 more on 4 nodes have not entered "
                            "all_reduce #5; the other 7995 wait in it");
}

TEST_CASE("a rank that is in an older collective, or alone has not come out of one") {
  Places ranks = Places(4).all(9, inside(8, "broadcast"));
  ranks.at(2, 9, inside(7));
  CHECK(ranks.hang() == kNone +
                            "rank 2 on node-0 (step 9) is still in all_reduce #7; "
                            "the other 3 wait in broadcast #8");
  Places left = Places(4).all(9, out_of(8));
  left.at(3, 9, inside(8));
  CHECK(left.hang() == kNone +
                           "rank 3 on node-0 (step 9) is still in all_reduce #8 (4.0 KiB); "
                           "the other 3 have come out of it");
}

TEST_CASE("ranks in different collectives") {
  Places ranks = Places(8).all(9, inside(12));
  ranks.at(3, 9, inside(12, "broadcast", 8));
  CHECK(ranks.hang() == kNone +
                            "ranks are in different collectives: rank 3 on node-0 in "
                            "broadcast #12 (8 B), the other 7 in all_reduce #12 (4.0 KiB)");
  // One that has not come at all changes nothing of it.
  ranks.at(0, 9, out_of(11));
  CHECK(ranks.hang().starts_with(kNone + "ranks are in different collectives: rank 3 on node-0"));
  Places sizes = Places(2).all(9, inside(12));
  sizes.at(1, 9, inside(12, "all_reduce", 8192));
  CHECK(sizes.hang() == kNone +
                            "ranks are in different collectives: rank 0 on node-0 in "
                            "all_reduce #12 (4.0 KiB), rank 1 on node-0 in all_reduce #12 "
                            "(8.0 KiB)");
  // These may bring different amounts.
  Places gather = Places(2).all(9, inside(12, "all_gather", 1));
  gather.at(1, 9, inside(12, "all_gather", 2));
  CHECK(gather.hang().find("different") == std::string::npos);
  Places many(16);
  for (int rank = 0; rank < 16; ++rank) many.at(rank, 9, inside(3, "call_" + std::to_string(rank)));
  CHECK(many.hang().size() < 300);
  CHECK(many.hang().ends_with("and 13 in others"));
}

TEST_CASE("all in the same collective, or in none") {
  CHECK(Places(8).all(9, inside(12)).hang() ==
        kNone +
            "all 8 ranks wait in all_reduce #12 (4.0 KiB): none of them lags, so that it is "
            "the network between them, or a process outside of the job");
  CHECK(Places(8).all(9, out_of(12), "data").hang() ==
        kNone + "all 8 ranks are at step 9, in data, in no collective");
  Places steps = Places(8).all(12, out_of(12));
  steps.at(3, 10, out_of(12), "data");
  CHECK(steps.hang() == kNone + "rank 3 on node-0 is at step 10 (data), the other 7 at step 12");
  Places phases = Places(8).all(12, std::nullopt, "validation");
  phases.at(3, 12, std::nullopt, "data");
  CHECK(phases.hang() ==
        kNone + "rank 3 on node-0 is in data at step 12, the other 7 are in validation");
  CHECK(Places(1).all(9).hang() == kNone + "rank 0 on node-0 is at step 9, in no collective");
}

TEST_CASE("numbers of collectives alone") {
  const Collective number{12, "", std::nullopt, std::nullopt, std::nullopt};
  Places ranks = Places(4).all(9, number);
  ranks.at(1, 9, Collective{11, "", std::nullopt, std::nullopt, std::nullopt});
  CHECK(ranks.hang() == kNone +
                            "rank 1 on node-0 (step 9) has not entered collective #12; "
                            "the other 3 have entered it");
}

TEST_CASE("ranks that are silent, or have ended") {
  Places ranks = Places(4).all(9, inside(12));
  ranks.at(2, 9, out_of(11), "", kStart - seconds(30));
  CHECK(ranks.hang() == kNone +
                            "rank 2 on node-0 (step 9) has not been heard of since "
                            "00:04:30Z; the other 3 wait in all_reduce #12");
  ranks.places[2].heard.reset();
  ranks.places[2].beat = {2, std::nullopt, "", std::nullopt};
  CHECK(ranks.hang() == kNone +
                            "rank 2 on node-0 has reported nothing yet; the other 3 wait in "
                            "all_reduce #12");
  // Where only one sends heartbeats the others are none that should.
  Places one(4);
  one.at(0, 9);
  CHECK(one.hang() == kNone + "rank 0 on node-0 is at step 9, in no collective");
  Places ended = Places(4).all(9, inside(12));
  ended.places[1].ended = true;
  CHECK(ended.hang() == kNone + "rank 1 on node-0 has ended; the other 3 wait in all_reduce #12");
  CHECK(Places(4).hang() == "no rank has reported anything since 00:05:00Z");
  Places stale(2);
  stale.at(0, 1, std::nullopt, "", kStart).at(1, 1, std::nullopt, "", kStart);
  CHECK(stale.hang() == "no rank has reported anything since 00:05:00Z");
}

TEST_CASE("what counts as an advance") {
  Advance advance;
  advance.start(kStart);
  const auto heard = [&](const wire::RankBeat& beat, seconds at, bool heartbeat = true) {
    return advance.heard(NodeId("node-0"), beat, heartbeat, kStart + at);
  };
  CHECK(heard({0, 1, "", inside(3)}, seconds(1)));
  CHECK_FALSE(heard({0, 1, "", inside(3)}, seconds(2)));
  CHECK(advance.moved() == kStart + seconds(1));
  CHECK(advance.ranks().at(0).heard == kStart + seconds(2));
  CHECK(heard({0, 1, "", out_of(3)}, seconds(3)));
  CHECK(heard({0, 1, "data", out_of(3)}, seconds(4)));
  CHECK(heard({0, 2, "data", out_of(3)}, seconds(5)));
  CHECK(heard({0, 2, "data", out_of(4)}, seconds(6)));
  CHECK(heard({1, 2, "", std::nullopt}, seconds(7)));
  // Metrics, progress and checkpoints always do, and leave the heartbeat as it was.
  CHECK(heard({0, 2, "", std::nullopt}, seconds(8), false));
  CHECK(advance.ranks().at(0).beat.collective == out_of(4));
  CHECK(advance.moved() == kStart + seconds(8));
  advance.ended(1, kStart + seconds(9));
  CHECK(advance.moved() == kStart + seconds(9));
}

TEST_CASE("the limit follows the steps, unless it is asked for") {
  Advance advance;
  advance.start(kStart);
  Monotonic now = kStart;
  std::int64_t step = 0;
  const auto go = [&](std::int64_t steps, seconds each, std::int64_t at_once = 1) {
    for (std::int64_t i = 0; i < steps; i += at_once) {
      now += each * at_once;
      step += at_once;
      advance.heard(NodeId("node-0"), {0, step, "", std::nullopt}, true, now);
    }
  };
  go(20, seconds(60));
  CHECK_FALSE(advance.limit(std::nullopt).has_value());  // 19 are known
  CHECK(advance.limit(seconds(7)) == seconds(7));
  go(1, seconds(60));
  CHECK(advance.limit(std::nullopt) == minutes(10));
  go(50, seconds(90));
  CHECK(advance.limit(std::nullopt) == minutes(15));
  // The last hundred count, and never less than five minutes.
  go(100, seconds(2));
  CHECK(advance.limit(std::nullopt) == minutes(5));
  // A program that reports every hundred steps, and a validation.
  go(200, seconds(4), 100);
  CHECK(advance.limit(std::nullopt) == seconds(800));
  go(1, seconds(1800));
  CHECK(advance.limit(std::nullopt) == minutes(60));
}

namespace {

// A job of two nodes with two ranks each, which runs.
struct Running : World {
  JobId id;
  std::vector<std::pair<std::string, wire::TakeStacks>> asked;  // for stacks

  explicit Running(const std::function<void(JobSpec&)>& change = [](JobSpec&) {}) : World(2) {
    options.node_lost_after = std::chrono::hours(100);
    restart();
    clock.advance(std::chrono::nanoseconds(123456));
    join("node-0");
    join("node-1");
    JobSpec job = spec();
    job.nnodes = {2, 2};
    job.nproc_per_node.number = 2;
    change(job);
    id = submit(job);
    begin(1);
  }
  void begin(int attempt) {
    CHECK(started("node-0", id, attempt).beats);
    say("node-0", id, attempt, wire::MasterReady{29500});
    CHECK(started("node-1", id, attempt).beats);
    start_ranks("node-0", id, attempt, 0, 2);
    start_ranks("node-1", id, attempt, 2, 2);
    until([&] { return state(id) == "running"; });
    settle();
  }
  void beat(int rank, std::int64_t step, const std::optional<Collective>& call = std::nullopt) {
    wire::RankBeats beats;
    beats.beats.push_back({rank, step, "", call});
    say(rank < 2 ? "node-0" : "node-1", id, 1, beats);
  }
  void all(std::int64_t step, const std::optional<Collective>& call = std::nullopt) {
    for (int rank = 0; rank < 4; ++rank) beat(rank, step, call);
  }
  void take_stacks(const NodeId& node, const wire::TakeStacks& wanted) override {
    asked.emplace_back(node.str(), wanted);
  }
  void kept(const std::string& node, const std::optional<Error>& error = std::nullopt) {
    // What came by the wire, and goes back by it.
    const auto there = [](const auto& message) {
      return wire::head_message_from_json(wire::to_json(wire::HeadMessage(message)));
    };
    const auto question = std::get<wire::TakeStacks>(there(asked.back().second));
    const wire::NodeMessage answer = wire::StacksTaken{id, 1, question.at, !error, error};
    engine->stacks_taken(NodeId(node), std::get<wire::StacksTaken>(
                                           wire::node_message_from_json(wire::to_json(answer))));
    settle();
  }
  std::string reason() { return engine->job(id).at("reason").get<std::string>(); }
  int said(const std::string& part) { return World::said(id, part); }
};

void ten_seconds(JobSpec& job) {
  job.hang_timeout = seconds(10);
}
void ends_after_ten_seconds(JobSpec& job) {
  ten_seconds(job);
  job.on_hang = OnHang::restart;
}

const std::string kLags =
    "hang: no progress for 10.0 s: rank 3 on node-1 (step 1) has not "
    "entered all_reduce #8; the other 3 wait in it";

}  // namespace

TEST_CASE("the head keeps each rank's newest heartbeat, shows it, and acknowledges it at once") {
  Running world;
  world.beat(0, 5, inside(7));
  world.say("node-0", world.id, 1,
            wire::RankReport{1, {{"type", "heartbeat"}, {"step", 6}, {"collective", 9}}});
  world.beat(3, 1);
  world.beat(3, 2, Collective{1, "barrier", std::nullopt, 1767323045.5, true});
  CHECK(world.acknowledged("node-0", world.id, 1) == 4);
  // Of another node's rank it is none.
  world.say("node-0", world.id, 1, wire::RankBeats{{{2, 9, "", std::nullopt}}});
  const nlohmann::json ranks = world.engine->job(world.id).at("attempts")[0].at("ranks");
  CHECK(ranks[0].at("heartbeat").at("step") == 5);
  CHECK(ranks[0].at("heartbeat").at("collective").at("name") == "all_reduce");
  CHECK(ranks[0].at("heartbeat").at("collective").at("done") == false);
  CHECK(ranks[1].at("heartbeat").at("collective").at("sequence") == 9);
  CHECK(ranks[1].at("heartbeat").at("collective").at("done").is_null());
  CHECK_FALSE(ranks[2].contains("heartbeat"));
  CHECK(ranks[3].at("heartbeat").at("step") == 2);
  CHECK(ranks[3].at("heartbeat").at("collective").at("entered") == "2026-01-02T03:04:05.500Z");
  for (const char* node : {"node-0", "node-1"}) {
    world.finish(node, world.id, 1, Outcome::failed, "over");
  }
  world.until([&] { return world.state(world.id) == "failed"; });
  const nlohmann::json job = world.engine->job(world.id);
  for (const nlohmann::json& rank : job.at("attempts")[0].at("ranks")) {
    CHECK_FALSE(rank.contains("heartbeat"));
  }
}

TEST_CASE("heartbeats are heard while a checkpoint before them is on its way") {
  Running world;
  const std::uint64_t before = world.acknowledged("node-0", world.id, 1);
  world.say("node-0", world.id, 1,
            wire::RankReport{0,
                             {{"type", "checkpoint"},
                              {"step", 5},
                              {"path", "/there"},
                              {"shard", 0},
                              {"shards", 2},
                              {"ack", true}}});
  const auto heard = [&] {
    std::vector<std::uint64_t> seqs;
    for (const auto& each : world.sent) {
      if (const auto* one = std::get_if<wire::EventHeard>(&each.command)) seqs.push_back(one->seq);
    }
    return seqs;
  };
  world.beat(0, 5, inside(7));
  world.beat(0, 5, inside(8));
  CHECK(world.acknowledged("node-0", world.id, 1) == before);
  CHECK(heard() == std::vector<std::uint64_t>{before + 2, before + 3});
  // It had not come there.
  world.repeat("node-0", world.id, 1, before + 3, wire::RankBeats{});
  CHECK(heard().back() == before + 3);
  CHECK(heard().size() == 3);
  const nlohmann::json rank = world.engine->job(world.id).at("attempts")[0].at("ranks")[0];
  CHECK(rank.at("heartbeat").at("collective").at("sequence") == 8);
}

TEST_CASE("ranks that have all ended hang no more, whatever is awaited still") {
  Running world(ends_after_ten_seconds);
  world.all(1, out_of(7));
  for (int rank = 0; rank < 4; ++rank) {
    world.exit_rank(rank < 2 ? "node-0" : "node-1", world.id, 1, rank, 0);
  }
  for (int i = 0; i < 10; ++i) world.advance(seconds(11));
  world.settle();
  CHECK(world.state(world.id) == "running");
  for (const char* node : {"node-0", "node-1"}) {
    world.finish(node, world.id, 1, Outcome::succeeded);
  }
  world.until([&] { return world.state(world.id) == "succeeded"; });
}

TEST_CASE("a reported hang is looked at no more often while a node is away") {
  Running world(ten_seconds);
  world.all(1, out_of(7));
  for (const int rank : {0, 1, 2}) world.beat(rank, 1, inside(8));
  world.advance(seconds(11));
  world.settle();
  REQUIRE(world.reason().starts_with("hang: "));
  world.engine->gone(NodeId("node-1"));
  world.advance(seconds(40));  // and comes back, which it does not while a timer is due at once
  CHECK(world.reason().starts_with("hang: "));
}

TEST_CASE("on_hang report: which rank lags is said once, and that it goes on") {
  Running world(ten_seconds);
  world.all(1, out_of(7));
  world.advance(seconds(6));
  for (const int rank : {0, 1, 2}) world.beat(rank, 1, inside(8));
  world.advance(seconds(6));
  world.all(1, std::nullopt);  // as they were, so to say
  for (const int rank : {0, 1, 2}) world.beat(rank, 1, inside(8));
  world.beat(3, 1, out_of(7));
  world.advance(std::chrono::milliseconds(9999));
  CHECK(world.reason().empty());
  world.advance(std::chrono::milliseconds(1));
  CHECK(world.reason() == kLags);
  CHECK(world.state(world.id) == "running");
  CHECK(world.news.back().frame.at("reason") == kLags);
  // The same heartbeats are no advance.
  for (int i = 0; i < 12; ++i) {
    world.advance(seconds(10));
    for (const int rank : {0, 1, 2}) world.beat(rank, 1, inside(8));
    world.beat(3, 1, out_of(7));
  }
  CHECK(world.said("hang: ") == 1);
  CHECK(world.asked.size() == 2);
  CHECK(world.stops("node-0", world.id, 1) == 0);
  CHECK_FALSE(world.reason().empty());
  world.beat(3, 1, inside(8));
  world.settle();
  CHECK(world.reason().empty());
  CHECK(world.said("it goes on, after 2 m 10 s without progress") == 1);
  world.advance(seconds(10));
  CHECK(world.said("hang: ") == 2);
  CHECK(world.reason().find("all 4 ranks wait in all_reduce #8") != std::string::npos);
}

TEST_CASE("where the limit is short, a rank that turns out to be silent is named later") {
  Running world(ten_seconds);
  world.all(1, inside(8));
  world.advance(seconds(10));
  CHECK(world.reason().find("all 4 ranks wait in all_reduce #8") != std::string::npos);
  world.advance(seconds(15));
  for (const int rank : {0, 1, 2}) world.beat(rank, 1, inside(8));
  world.advance(seconds(10));
  CHECK(world.reason().find("rank 3 on node-1 (step 1) has not been heard of since") !=
        std::string::npos);
  CHECK(world.said("hang: ") == 2);
  world.advance(minutes(2));
  CHECK(world.said("hang: ") == 2);
}

TEST_CASE("on_hang restart: the attempt fails for it, and the next one begins") {
  Running world([](JobSpec& job) {
    ten_seconds(job);
    job.on_hang = OnHang::restart;
    job.max_restarts = 1;
  });
  for (const int rank : {0, 1, 2}) world.beat(rank, 1, inside(8));
  world.beat(3, 1, out_of(7));
  world.advance(seconds(10));
  // Once it is known what they do.
  world.settle();
  CHECK(world.reason() == kLags);
  REQUIRE(world.asked.size() == 2);
  CHECK(world.asked[1].first == "node-1");
  CHECK(world.asked[1].second.reason == kLags);
  CHECK(world.asked[1].second.ranks == std::vector<int>{2, 3});
  CHECK(world.asked[1].second.at == world.asked[0].second.at);
  world.kept("node-0");
  world.kept("node-0");  // a repeat says nothing of the other one
  CHECK(world.stops("node-0", world.id, 1) == 0);
  world.kept("node-1", Error(ErrorCode::not_found, "there is no dtrain-profiler"));
  CHECK(world.stops("node-0", world.id, 1) == 1);
  CHECK(world.stops("node-1", world.id, 1) == 1);
  CHECK(world.said("the stacks of its ranks are kept: dtrain stack --kept " + world.id.str() +
                   "; not all: node-1: there is no dtrain-profiler") == 1);
  world.advance(minutes(1));
  CHECK(world.said("hang: ") == 1);
  for (int rank = 0; rank < 4; ++rank) {
    world.exit_rank(rank < 2 ? "node-0" : "node-1", world.id, 1, rank, 143, true);
  }
  world.finish("node-0", world.id, 1, Outcome::stopped, kLags);
  world.finish("node-1", world.id, 1, Outcome::stopped, kLags);
  world.begin(2);
  const nlohmann::json job = world.engine->job(world.id);
  CHECK(job.at("attempts")[0].at("reason") == kLags);
  CHECK(job.at("attempts")[0].at("state") == "failed");
  CHECK(job.at("restarts") == 1);
}

TEST_CASE("on_hang restart: nodes that do not say what their ranks do are waited for a while") {
  Running world(ends_after_ten_seconds);
  world.all(1, inside(8));
  world.advance(seconds(10));
  REQUIRE(world.asked.size() == 2);
  world.advance(seconds(69));
  CHECK(world.stops("node-0", world.id, 1) == 0);
  world.advance(seconds(1));
  CHECK(world.stops("node-0", world.id, 1) == 1);
  CHECK(world.said("all 4 ranks wait") == 1);
  CHECK(world.said(
            "the stacks of its ranks are not kept: node-0: it has not answered, and 1 more") == 1);
}

TEST_CASE("on_hang restart: while a node is not heard nothing is ended for it") {
  Running world(ends_after_ten_seconds);
  world.all(1, inside(8));
  world.advance(seconds(10));
  world.engine->gone(NodeId("node-1"));
  world.kept("node-0");
  world.advance(seconds(70));
  CHECK(world.stops("node-0", world.id, 1) == 0);
  CHECK(world.reason().empty());
  world.join("node-1", {{world.id, 1}});
  world.all(1, inside(8));
  world.advance(seconds(10));
  CHECK(world.asked.size() == 4);
  for (const char* node : {"node-0", "node-1"}) world.kept(node);
  CHECK(world.stops("node-0", world.id, 1) == 1);
}

TEST_CASE("ranks that have ended are not looked at") {
  Running world(ten_seconds);
  world.all(1, inside(8));
  for (const int rank : {1, 2, 3}) {
    world.exit_rank(rank < 2 ? "node-0" : "node-1", world.id, 1, rank, 0);
  }
  world.advance(seconds(10));
  REQUIRE(world.asked.size() == 1);
  CHECK(world.asked[0].first == "node-0");
  CHECK(world.asked[0].second.ranks == std::vector<int>{0});
}

TEST_CASE("on_hang restart: a job that goes on while its stacks are taken is left alone") {
  Running world(ends_after_ten_seconds);
  world.all(1, inside(8));
  world.advance(seconds(10));
  world.all(2, inside(9));
  world.settle();
  CHECK(world.reason().empty());
  CHECK(world.said("it goes on, after 10.0 s without progress") == 1);
  world.kept("node-0");
  world.kept("node-1");
  CHECK(world.stops("node-0", world.id, 1) == 0);
  // And is looked at again.
  world.advance(seconds(10));
  CHECK(world.asked.size() == 4);
  world.kept("node-0");
  world.kept("node-1");
  CHECK(world.stops("node-0", world.id, 1) == 1);
}

TEST_CASE("on_hang restart: an attempt that ends while its stacks are taken has its own end") {
  const auto hanging = [] {
    auto world = std::make_unique<Running>(ends_after_ten_seconds);
    world->all(1, inside(8));
    world->advance(seconds(10));
    REQUIRE(world->asked.size() == 2);
    return world;
  };
  const auto failed = hanging();
  failed->exit_rank("node-0", failed->id, 1, 0, 3);
  for (const char* node : {"node-0", "node-1"}) failed->kept(node);
  CHECK(failed->said("the stacks of its ranks are kept") == 1);
  for (const int rank : {1, 2, 3}) {
    failed->exit_rank(rank < 2 ? "node-0" : "node-1", failed->id, 1, rank, 143, true);
  }
  for (const char* node : {"node-0", "node-1"}) {
    failed->finish(node, failed->id, 1, Outcome::failed, "rank 0: exit code 3");
  }
  failed->until([&] { return failed->state(failed->id) == "failed"; });
  CHECK(failed->engine->job(failed->id).at("attempts")[0].at("failure") == "exit_code");
  const auto stopped = hanging();
  stopped->engine->stop(stopped->id, std::nullopt, [](const nlohmann::json&) {});
  for (const char* node : {"node-0", "node-1"}) stopped->kept(node);
  CHECK(stopped->said("hang: ") == 0);
  CHECK(stopped->reason().find("hang") == std::string::npos);
}

TEST_CASE("on_hang restart: agents that know of no stacks are not waited for") {
  Running world(ends_after_ten_seconds);
  for (const char* node : {"node-0", "node-1"}) {
    NodeInfo old = World::info_of(node);
    std::erase(old.features, "stacks");
    old.attempts = {{world.id, 1}};
    world.engine->gone(NodeId(node));
    world.engine->joined(old);
  }
  world.all(1, inside(8));
  world.advance(seconds(10));
  CHECK(world.asked.empty());
  CHECK(world.stops("node-0", world.id, 1) == 1);
}

TEST_CASE("on_hang nothing, and jobs of which nothing is known, are left alone") {
  Running silent([](JobSpec& job) {
    ten_seconds(job);
    job.on_hang = OnHang::nothing;
  });
  silent.all(1, inside(8));
  silent.advance(std::chrono::hours(5));
  CHECK(silent.said("hang: ") == 0);
  Running plain;
  plain.advance(std::chrono::hours(5));
  CHECK(plain.said("hang: ") == 0);
  // Unless somebody has said how long.
  Running asked(ten_seconds);
  asked.advance(seconds(10));
  CHECK(asked.reason().starts_with("hang: no rank has reported anything since "));
}

TEST_CASE("any report of any rank is progress, and steps make a limit by themselves") {
  Running world;
  for (int step = 1; step <= 21; ++step) {
    world.all(step, out_of(static_cast<std::uint64_t>(step)));
    world.advance(seconds(1));
  }
  world.advance(minutes(4));
  world.say("node-1", world.id, 1,
            wire::RankReport{2, {{"type", "progress"}, {"step", 21}, {"message", "validation"}}});
  world.advance(minutes(4));
  world.all(21, out_of(21));
  world.advance(seconds(59));
  CHECK(world.said("hang: ") == 0);
  world.advance(minutes(4));
  CHECK(world.said("hang: ") == 1);
}

TEST_CASE("a node that is away, and a head that is started anew, begin the time anew") {
  Running world(ten_seconds);
  world.all(1, inside(8));
  world.engine->gone(NodeId("node-1"));
  world.advance(seconds(15));
  CHECK(world.said("hang: ") == 0);
  world.join("node-1", {{world.id, 1}});
  world.advance(seconds(9));
  CHECK(world.said("hang: ") == 0);
  world.restart();
  world.join("node-0", {{world.id, 1}});
  world.join("node-1", {{world.id, 1}});
  world.advance(seconds(9));
  CHECK(world.said("hang: ") == 0);
  world.advance(seconds(1));
  CHECK(world.said("hang: no rank has reported anything since ") == 1);
}

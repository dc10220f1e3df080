#include <doctest/doctest.h>

#include "agent/head/store/sqlite.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;
using namespace std::chrono_literals;

namespace {

// A job with a rank on each of node-0 and node-1, which run.
JobId run_on_two(World& world) {
  world.join("node-0");
  world.join("node-1");
  JobSpec spec = World::spec();
  spec.nnodes = {2, 2};
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  world.start_ranks("node-1", id, 1, 1, 1);
  return id;
}

}  // namespace

TEST_CASE("a lost node: restarted elsewhere after its lease, the old epoch stopped at rejoin") {
  World world(2);
  world.join("node-0");
  world.join("node-1");
  const JobId id = world.submit(World::spec());  // max_restarts is 0: it is no failure of the job's
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  world.settle();
  world.engine->gone(NodeId("node-0"));
  for (int i = 0; i < 6; ++i) {
    world.advance(5s);
    world.engine->heard(NodeId("node-1"));
  }
  world.advance(1s);
  CHECK(world.state(id) == "restarting");
  CHECK(world.engine->status().at("nodes")[0].at("state") == "lost");
  CHECK(world.engine->job(id).at("attempts")[0].at("state") == "lost");
  CHECK_FALSE(world.was_started(id, 2));
  for (int i = 0; i < 6; ++i) {
    world.engine->heard(NodeId("node-1"));
    world.advance(5s);
  }
  world.started("node-1", id, 2);
  world.join("node-0", {{id, 1}});
  CHECK(world.stops("node-0", id, 1) == 1);
  CHECK(world.engine->status().at("nodes")[0].at("reason") != "");
  world.say("node-0", id, 1, wire::AttemptWarning{std::nullopt, "of the old epoch"});
  CHECK(world.acknowledged("node-0", id, 1) == 3);
  world.finish("node-0", id, 1, Outcome::stopped, "given up");
  CHECK(world.engine->status().at("nodes")[0].at("reason") == "");
  CHECK(world.state(id) == "starting");
}

TEST_CASE("a job that is removed while a lost node runs it on goes from there when it has ended") {
  bool was_frozen = false;
  bool is_next_head = false;
  bool agent_says = false;
  SUBCASE("of a node that was frozen") {
    was_frozen = true;
  }
  SUBCASE("of a node that was cut off") {}
  SUBCASE("of a node that is back at the next head") {
    is_next_head = true;
  }
  SUBCASE("without its supervisor's word") {
    agent_says = true;
  }
  World world;
  const NodeId node("node-0");
  const JobId id = world.begin("node-0");
  world.settle();
  if (!was_frozen) world.engine->gone(node);
  world.advance(31s);
  REQUIRE(world.state(id) == "restarting");
  world.engine->stop(id, std::nullopt, [](const nlohmann::json&) {});
  world.until([&] { return world.state(id) == "stopped"; });
  bool removed = false;
  world.engine->remove(id, [&](const nlohmann::json&) { removed = true; });
  world.until([&] { return removed; });
  if (is_next_head) world.restart();
  if (was_frozen) {
    world.engine->heard(node);
  } else {
    NodeInfo info = World::info_of("node-0");
    info.attempts = {{id, 1}};
    info.jobs = {id};
    world.engine->joined(info);
    world.beat("node-0");
  }
  CHECK(world.stops("node-0", id, 1) == 1);
  const JobId other = world.submit(World::spec());
  world.settle();
  CHECK(world.forgotten.empty());
  CHECK_FALSE(world.was_started(other, 1));
  if (agent_says) {
    world.engine->supervisor_lost(node, id, 1, "killed", {});
  } else {
    world.finish("node-0", id, 1, Outcome::stopped, "given up");
  }
  CHECK(world.forgotten == std::vector<std::pair<NodeId, JobId>>{{node, id}});
  world.started("node-0", other, 1);
}

TEST_CASE("a node that is lost while the start is being written ends the attempt once it is") {
  World world(1);
  const JobId id = world.submit(World::spec());
  world.settle();
  world.shut_door();
  world.join("node-0");
  world.until([&] { return world.waiting_at_door("starting"); });
  world.engine->gone(NodeId("node-0"));
  world.advance(31s);
  CHECK(world.engine->status().at("nodes")[0].at("state") == "lost");
  SUBCASE("it begins anew when the node is back") {
    world.open_door();
    world.until([&] { return world.state(id) == "restarting"; });
    const nlohmann::json attempt = world.engine->job(id).at("attempts")[0];
    CHECK(attempt.at("state") == "lost");
    CHECK(attempt.at("reason").get<std::string>().starts_with("node-0 was lost: not heard of"));
    world.join("node-0");
    world.started("node-0", id, 2);
  }
  SUBCASE("or was stopped meanwhile") {
    world.engine->stop(id, std::nullopt, [](const nlohmann::json&) {});
    world.open_door();
    world.until([&] { return world.state(id) == "stopped"; });
  }
  CHECK_FALSE(world.was_started(id, 1));
}

TEST_CASE("a head that died when only the loss of a node was kept ends what ran there") {
  World world(2);
  world.join("node-0");
  world.join("node-1");
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  world.settle();
  world.engine.reset();
  Database(world.options.root.database())
      .run(
          "UPDATE nodes SET state = 'lost', reason = 'not heard of for 31 s' WHERE node = "
          "'node-0'");
  world.restart();
  world.join("node-1");
  world.until([&] { return world.state(id) == "restarting"; });
  CHECK(world.engine->job(id).at("attempts")[0].at("reason") ==
        "node-0 was lost: not heard of for 31 s");
  for (int i = 0; i < 6; ++i) {  // its ranks may run until its lease is over
    world.advance(9s);
    world.engine->heard(NodeId("node-1"));
    CHECK_FALSE(world.was_started(id, 2));
  }
  world.advance(7s);
  world.started("node-1", id, 2);
}

TEST_CASE("of two lost nodes the one that is back does not end the wait for the other's lease") {
  enum class Back { alone, both };
  const auto run = [](bool has_last_word, Back back) {
    World world(3);
    for (const char* name : {"node-0", "node-1", "node-2"}) world.join(name);
    JobSpec spec = World::spec();
    spec.nnodes = {2, 2};
    const JobId id = world.submit(spec);
    world.started("node-0", id, 1);
    world.say("node-0", id, 1, wire::MasterReady{29500});
    world.start_ranks("node-0", id, 1, 0, 1);
    world.start_ranks("node-1", id, 1, 1, 1);
    world.settle();
    world.engine->gone(NodeId("node-0"));
    world.engine->gone(NodeId("node-1"));
    for (int i = 0; i < 7; ++i) {
      world.advance(5s);
      world.engine->heard(NodeId("node-2"));
    }
    CHECK(world.state(id) == "restarting");
    world.join("node-0", {{id, 1}});
    if (has_last_word) {
      world.finish("node-0", id, 1, Outcome::failed, "rank 0 failed");
    } else {
      world.engine->supervisor_lost(NodeId("node-0"), id, 1, "gone", {});
    }
    world.settle();
    CHECK_FALSE(world.was_started(id, 2));
    if (back == Back::both) world.join("node-1");
    for (int i = 0; back == Back::alone && i < 5; ++i) {
      world.advance(5s);
      for (const char* name : {"node-0", "node-2"}) world.engine->heard(NodeId(name));
    }
    world.until([&] { return world.was_started(id, 2); });
  };
  for (const bool has_last_word : {true, false}) {
    run(has_last_word, Back::alone);
    run(has_last_word, Back::both);
  }
}

TEST_CASE("a node that is gone explains why ranks elsewhere fail after it") {
  World world(2);
  const JobId id = run_on_two(world);
  world.settle();
  world.engine->gone(NodeId("node-0"));
  world.advance(5s);
  SUBCASE("its ranks fail for want of it") {
    world.exit_rank("node-1", id, 1, 1, 1);
    world.finish("node-1", id, 1, Outcome::failed, "rank 1 failed");
  }
  SUBCASE("its machine is back before it was lost") {
    world.exit_rank("node-1", id, 1, 1, 1);
    world.finish("node-1", id, 1, Outcome::failed, "rank 1 failed");
    NodeInfo info = World::info_of("node-0");
    info.boot_id = "another";
    world.engine->joined(info);
    world.settle();
  }
  for (int i = 0; i < 7; ++i) {
    world.engine->heard(NodeId("node-1"));
    world.advance(5s);
  }
  world.until([&] { return world.engine->job(id).at("attempts")[0].at("state") == "lost"; });
  const nlohmann::json attempt = world.engine->job(id).at("attempts")[0];
  CHECK(attempt.at("failure") == "node_lost");
  CHECK(attempt.at("counted") == false);
  CHECK(attempt.at("reason").get<std::string>().starts_with("node-0 was "));
  CHECK(world.state(id) != "failed");
}

TEST_CASE("what failed before a node was lost is the cause, whatever its node's clock says") {
  World world(2);
  const JobId id = run_on_two(world);
  wire::RankExited failed;
  failed.rank = 1;
  failed.exit.code = 7;
  failed.time = world.clock.wall() + 1h;
  world.say("node-1", id, 1, failed);
  world.finish("node-1", id, 1, Outcome::failed, "rank 1 failed");
  world.advance(5s);
  world.engine->heard(NodeId("node-0"));
  world.engine->gone(NodeId("node-0"));
  for (int i = 0; i < 7; ++i) {
    world.engine->heard(NodeId("node-1"));
    world.advance(5s);
  }
  world.until([&] { return world.state(id) == "failed"; });
  const nlohmann::json attempt = world.engine->job(id).at("attempts")[0];
  CHECK(attempt.at("failure") == "exit_code");
  CHECK(attempt.at("reason") == "rank 1 on node-1: exit code 7");
}

TEST_CASE("an agent that says more of its machine than the one before it is on the same machine") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  NodeInfo info = World::info_of("node-0");
  info.attempts = {{id, 1}};
  std::string why = "its supervisor was killed";
  SUBCASE("on the same") {
    info.boot_id = "boot 13";
  }
  SUBCASE("on one that was started anew") {
    info.boot_id = "boot2 13";
    why = "node-0 was started anew";
  }
  world.engine->joined(info);
  world.engine->supervisor_lost(info.node, id, 1, "its supervisor was killed", {});
  world.settle();
  CHECK(world.engine->job(id).at("attempts")[0].at("reason") == why);
}

TEST_CASE("a node where attempts fail that do not fail elsewhere is set aside") {
  World world(2);
  world.join("node-0");
  world.join("node-1");
  JobSpec spec = World::spec();
  spec.max_restarts = 5;
  const JobId id = world.submit(spec);
  world.run_through("node-0", id, 1, 3);
  world.run_through("node-0", id, 2, 3);
  const auto state = [&] { return world.engine->status().at("nodes")[0].at("state"); };
  SUBCASE("it does better on another") {
    world.run_through("node-1", id, 3, 0);
    world.until([&] { return world.state(id) == "succeeded"; });
    CHECK(state() == "drained");
    CHECK(world.said(id, "node-0 is set aside: attempts 1 and 2 of " + id.str() +
                             " failed there, attempt 3 does not without it"));
    CHECK(world.drain("node-0", true).at("state") == "ready");
  }
  SUBCASE("another job does well there: that is no node's fault") {
    const JobId other = world.submit(World::spec("other"));
    world.run_through("node-0", other, 1, 0);
    world.run_through("node-1", id, 3, 0);
    world.until([&] { return world.state(id) == "succeeded"; });
    CHECK(state() == "ready");
  }
  SUBCASE("it fails there too: that is no node's fault") {
    world.run_through("node-1", id, 3, 3);
    world.run_through("node-0", id, 4, 0);
    world.until([&] { return world.state(id) == "succeeded"; });
    CHECK(state() == "ready");
  }
}

TEST_CASE("another node of the machine where attempts fail is no other") {
  World world(2);
  for (const char* name : {"node-0", "node-1"}) {
    NodeInfo info = World::info_of(name);
    info.address = "127.0.0.1";
    info.machine = "one";
    world.engine->joined(info);
  }
  JobSpec spec = World::spec();
  spec.max_restarts = 5;
  const JobId id = world.submit(spec);
  world.run_through("node-0", id, 1, 3);
  world.run_through("node-0", id, 2, 3);
  world.run_through("node-0", id, 3, 0);
  world.until([&] { return world.state(id) == "succeeded"; });
  CHECK(world.engine->status().at("nodes")[0].at("state") == "ready");
}

TEST_CASE("nodes that cannot come while the head has no port are not lost") {
  World world(1);
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  world.settle();
  world.engine->gone(NodeId("node-0"));
  world.head_has_port = false;
  for (int i = 0; i < 40; ++i) world.advance(5s);
  CHECK(world.engine->status().at("nodes")[0].at("state") != "lost");
  CHECK(world.state(id) == "running");
  // Once it has it, they have their time to come.
  world.head_has_port = true;
  world.advance(25s);
  CHECK(world.engine->status().at("nodes")[0].at("state") != "lost");
  for (int i = 0; i < 3; ++i) world.advance(5s);
  CHECK(world.engine->status().at("nodes")[0].at("state") == "lost");
}

TEST_CASE("a supervisor that is gone fails the attempt with that reason") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  SUBCASE("the node says so") {
    world.engine->supervisor_lost(NodeId("node-0"), id, 1, "the supervisor was killed", {77});
    world.until([&] { return world.state(id) == "failed"; });
    CHECK(world.engine->job(id).at("reason") == "the supervisor was killed");
    CHECK(world.said(id, "77"));
  }
  SUBCASE("the node comes back without it") {
    world.engine->gone(NodeId("node-0"));
    world.join("node-0");
    world.until([&] { return world.state(id) == "failed"; });
    CHECK(world.engine->job(id).at("reason") == "its supervisor on node-0 is gone");
  }
  SUBCASE("while it was being stopped") {
    world.engine->stop(id, std::nullopt, nullptr);
    world.settle();
    world.engine->supervisor_lost(NodeId("node-0"), id, 1, "killed", {});
    world.until([&] { return world.state(id) == "stopped"; });
  }
}

TEST_CASE("a node that could not start it") {
  World world;
  world.join("node-0");
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  world.engine->start_failed(NodeId("node-0"), id, 1, Error(ErrorCode::io, "no such workdir"));
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.engine->job(id).at("error").at("message") ==
        "it could not be started on node-0: no such workdir");
  CHECK(world.engine->job(id).at("exit_code").is_null());
}

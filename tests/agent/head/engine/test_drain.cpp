// Nodes that are to be left alone, or leave.

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/far.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using Outcome = wire::NodeFinished::Outcome;
using namespace std::chrono_literals;

TEST_CASE("a drained node gets nothing new, keeps what runs, and can be taken back") {
  Far world(2);
  const JobId first = world.submit(World::spec());
  world.started("node-0", first, 1);
  world.say("node-0", first, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", first, 1, 0, 1);
  CHECK(world.drain("node-0").at("state") == "draining");
  const JobId second = world.submit(World::spec());
  world.started("node-1", second, 1);
  CHECK_THROWS_AS(world.engine->remove_node(NodeId("node-0"), false, {}), Error);
  // A head that is started anew knows it still.
  world.settle();
  world.restart();
  world.join("node-0", {{first, 1}});
  CHECK(state_of(world, "node-0") == "draining");
  world.exit_rank("node-0", first, 1, 0, 0);
  world.finish("node-0", first, 1, Outcome::succeeded);
  world.until([&] { return world.state(first) == "succeeded"; });
  world.until([&] { return state_of(world, "node-0") == "drained"; });
  CHECK(world.drain("node-0", true).at("state") == "ready");
  CHECK_THROWS_AS(world.drain("node-9"), Error);
}

TEST_CASE("a drain is answered when a head that is started anew would know it") {
  Far world(2);
  for (const bool undo : {false, true}) {
    world.settle();
    world.shut_door();
    nlohmann::json answer;
    world.engine->drain(NodeId("node-0"), undo, [&](nlohmann::json a) { answer = a; });
    world.settle();
    CHECK(answer.is_null());
    world.open_door();
    world.until([&] { return !answer.is_null(); });
    CHECK(answer == nlohmann::json{{"node", "node-0"}, {"state", undo ? "ready" : "draining"}});
    world.until([&] { return state_of(world, "node-0") == (undo ? "ready" : "drained"); });
  }
}

TEST_CASE("a drained node that was lost comes back as one, until its drain is taken back") {
  Far world(2);
  const auto silent = [&] {
    for (int i = 0; i < 4; ++i) {
      world.advance(10s);
      world.engine->heard(NodeId("node-1"));
    }
    CHECK(state_of(world, "node-0") == "lost");
  };
  world.drain("node-0");
  world.until([&] { return state_of(world, "node-0") == "drained"; });
  const std::string reason = row_of(world, "node-0").at("reason");
  SUBCASE("by a connection that held") {
    silent();
    world.engine->heard(NodeId("node-0"));
  }
  SUBCASE("by a new connection") {
    world.engine->gone(NodeId("node-0"));
    silent();
    world.join("node-0");
  }
  SUBCASE("to a head that was started anew") {
    world.engine->gone(NodeId("node-0"));
    silent();
    world.settle();
    world.restart();
    world.join("node-0");
    world.join("node-1");
  }
  SUBCASE("taken back while it is lost") {
    world.engine->gone(NodeId("node-0"));
    silent();
    CHECK(world.drain("node-0", true).at("state") == "lost");
    world.restart();
    world.join("node-0");
    CHECK(state_of(world, "node-0") == "ready");
    return;
  }
  SUBCASE("removed, and let in again") {
    nlohmann::json answer;
    world.engine->remove_node(NodeId("node-0"), false, [&](nlohmann::json a) { answer = a; });
    world.revoking(std::nullopt);
    world.until([&] { return !answer.is_null(); });
    world.join("node-0");
    CHECK(state_of(world, "node-0") == "ready");
    return;
  }
  world.until([&] { return state_of(world, "node-0") == "drained"; });
  CHECK(row_of(world, "node-0").at("reason") == reason);
  const JobId id = world.submit(World::spec());
  world.started("node-1", id, 1);
  CHECK(world.drain("node-0", true).at("state") == "ready");
}

TEST_CASE("a removed node is let in no more, and its ranks are given up") {
  Far world(2);
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.begin(id);
  nlohmann::json answer;
  world.engine->remove_node(NodeId("node-0"), true, [&](nlohmann::json a) { answer = a; });
  CHECK(world.revoked == std::vector<NodeId>{NodeId("node-0")});
  CHECK_THROWS_AS(world.engine->remove_node(NodeId("node-0"), true, {}), Error);
  CHECK(answer.is_null());
  world.revoking(std::nullopt);
  CHECK(answer.is_null());  // nor is it on the disk yet
  world.until([&] { return !answer.is_null(); });
  CHECK(answer.at("state") == "gone");
  CHECK(world.stops("node-0", id, 1) == 1);
  CHECK(state_of(world, "node-0") == "not listed");
  CHECK_THROWS_AS(world.engine->remove_node(NodeId("node-0"), true, {}), Error);
  // Two attempts never run at once: its lease runs out first.
  world.until([&] { return world.state(id) == "restarting"; });
  CHECK_FALSE(world.was_started(id, 2));
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(world.was_started(id, 2));
    world.advance(20s);
    world.engine->heard(NodeId("node-1"));
  }
  world.advance(1s);
  world.started("node-1", id, 2);
}

TEST_CASE("a node that is let in no more has left, though the head died before that was written") {
  Far world(2);
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.begin(id);
  SUBCASE("when it was asked to") {
    world.engine->remove_node(NodeId("node-0"), true, [](const nlohmann::json&) {});
  }
  SUBCASE("when it was lost, which is all that its copy of the database has of it") {
    world.engine->gone(NodeId("node-0"));
    world.advance(20s);
    world.engine->heard(NodeId("node-1"));
    world.advance(11s);
    CHECK(state_of(world, "node-0") == "lost");
  }
  world.settle();
  world.shut_out.insert(NodeId("node-0"));
  world.options.expected_nodes = 1;  // as it was written before
  world.restart();
  world.join("node-1");
  world.settle();
  CHECK(state_of(world, "node-0") == "not listed");
  CHECK(world.engine->status().at("cluster").at("expected_nodes") == 1);
  CHECK_THROWS_AS(world.engine->remove_node(NodeId("node-0"), true, {}), Error);
  CHECK(world.state(id) == "restarting");  // its lease runs out first
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(world.was_started(id, 2));
    world.advance(20s);
    world.engine->heard(NodeId("node-1"));
  }
  world.advance(1s);
  world.started("node-1", id, 2);
}

TEST_CASE("the ranks of a removed node end the attempt, though they end before it has left") {
  Far world(2);
  JobSpec spec = over(2);
  SUBCASE("for good") {}
  SUBCASE("or it is started anew, here when the node stays") {
    spec.max_restarts = 1;
  }
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.started("node-1", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  world.start_ranks("node-1", id, 1, 1, 1);
  nlohmann::json answer;
  world.engine->remove_node(NodeId("node-1"), true, [&](nlohmann::json a) { answer = a; });
  CHECK(world.stops("node-1", id, 1) == 1);
  CHECK(world.stops("node-0", id, 1) == 1);
  const std::string given_up = "attempt 1 of " + id.str() + " was given up";
  world.exit_rank("node-1", id, 1, 1, 137, true);
  world.finish("node-1", id, 1, Outcome::stopped, given_up);
  world.settle();
  CHECK(answer.is_null());
  CHECK(world.state(id) == "running");  // until node-0's have ended too
  const bool stays = spec.max_restarts > 0;
  world.revoking(stays ? std::optional(Error(ErrorCode::io, "the disk is full")) : std::nullopt);
  CHECK(answer.contains("error") == stays);
  world.exit_rank("node-0", id, 1, 0, 143, true);
  world.finish("node-0", id, 1, Outcome::stopped, "node-1 was removed from the cluster");
  if (stays) {
    world.started("node-0", id, 2);
    return;
  }
  world.until([&] { return world.state(id) == "restarting"; });
  const nlohmann::json attempt = world.engine->job(id).at("attempts").at(0);
  CHECK(attempt.at("reason") == "node-1 was removed from the cluster");
  CHECK(attempt.at("failure") == "node_lost");
}

TEST_CASE("a node that leaves by itself ends its attempts, and nobody waits for it") {
  Far world(2);
  JobSpec spec = over(2);
  spec.nnodes = {1, 2};
  spec.max_restarts = 0;  // it is no failure of the job's
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.started("node-1", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  world.start_ranks("node-1", id, 1, 1, 1);
  const NodeId node("node-1");
  world.engine->leaving(node, "its container was\ntold to end (SIGTERM)", false);
  CHECK(world.stops("node-0", id, 1) == 1);
  CHECK(world.stops("node-1", id, 1) == 0);  // it stops its own
  world.exit_rank("node-0", id, 1, 0, 143, true);
  world.finish("node-0", id, 1, Outcome::stopped, "");
  SUBCASE("once its attempts have ended") {
    world.exit_rank("node-1", id, 1, 1, 143, true);
    world.finish("node-1", id, 1, Outcome::stopped, "node-1 leaves the cluster");
    // The next attempt is not for a node that is about to leave.
    CHECK(world.started("node-0", id, 2).nnodes == 1);
    world.engine->leaving(node, "its container was told to end (SIGTERM)", true);
  }
  SUBCASE("or without their last words") {
    world.settle();
    CHECK_FALSE(world.was_started(id, 2));
    world.engine->leaving(node, "its container was told to end (SIGTERM)", true);
    CHECK(world.started("node-0", id, 2).nnodes == 1);
  }
  const std::string cause = "node-1 leaves the cluster: its container was";
  const auto reason = [&] {
    return world.engine->job(id).at("attempts").at(0).at("reason").get<std::string>();
  };
  CHECK(reason().starts_with(cause));
  // Its provider's word comes later, and once.
  const std::string before = reason();
  for (int i = 0; i < 2; ++i) world.engine->explain(node, "Slurm job 7\nwas preempted");
  world.engine->explain(NodeId("node-0"), "Slurm job 8 was cancelled");
  world.engine->explain(NodeId("node-9"), "Slurm job 9 was cancelled");
  CHECK(reason() == before + "; Slurm job 7\\x0awas preempted");
  bool noted = false;
  for (const std::string& message : world.messages(id)) {
    noted = noted || message.starts_with("begins anew, for " + cause);
  }
  CHECK(noted);
}

TEST_CASE("its provider's word reaches the reason of an attempt, before its end or after") {
  Far world(1);
  JobSpec spec = World::spec();
  spec.max_restarts = 0;
  const JobId id = world.submit(spec);
  world.begin(id);
  const NodeId node("node-0");
  const std::string told = "its step of Slurm job 2 was told to end (SIGTERM)";
  const std::string word = "Slurm job 2 was preempted";
  const std::string cause = "node-0 leaves the cluster: " + told;
  const auto reason = [&] {
    return world.engine->job(id).at("attempts").at(0).at("reason").get<std::string>();
  };
  const auto end = [&](Outcome outcome) {
    world.exit_rank("node-0", id, 1, 0, 143, true);
    world.finish("node-0", id, 1, outcome, cause);
    world.engine->leaving(node, told, true);
  };
  SUBCASE("after it") {
    world.engine->leaving(node, told, false);
    end(Outcome::stopped);
    CHECK(reason() == cause);
    world.engine->explain(node, word);
  }
  SUBCASE("after it, of a head that was started anew meanwhile") {
    world.engine->leaving(node, told, false);
    end(Outcome::stopped);
    world.settle();
    world.restart();
    CHECK(reason() == cause);
    world.engine->explain(node, word);
  }
  SUBCASE("after it, and after it has dialled once more to say so") {
    world.engine->leaving(node, told, false);
    end(Outcome::stopped);
    world.join("node-0", {}, 4, told);
    world.engine->leaving(node, told, false);
    world.engine->leaving(node, told, true);
    world.engine->explain(node, word);
  }
  SUBCASE("while its ranks end") {
    world.engine->leaving(node, told, false);
    world.engine->explain(node, word);
    end(Outcome::stopped);
  }
  SUBCASE("while its ranks end, which its supervisor calls a failure") {
    world.engine->leaving(node, told, false);
    world.engine->explain(node, word);
    end(Outcome::failed);
  }
  SUBCASE("before it has said that it leaves") {
    world.engine->explain(node, word);
    world.engine->leaving(node, told, false);
    end(Outcome::stopped);
  }
  SUBCASE("without its last words") {
    world.engine->leaving(node, told, false);
    world.engine->explain(node, word);
    world.engine->leaving(node, told, true);
  }
  CHECK(reason() == cause + "; " + word);
  world.engine->explain(node, word);
  CHECK(reason() == cause + "; " + word);  // once
}

TEST_CASE("a word on a machine's end says nothing of what ended long before the head was started") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  world.engine->gone(NodeId("node-0"));
  world.advance(61s);
  world.settle();
  const auto reason = [&] {
    return world.engine->job(id).at("attempts").at(0).at("reason").get<std::string>();
  };
  const std::string before = reason();
  CHECK(before.starts_with("node-0 was lost"));
  world.clock.advance(61min);
  world.restart();
  world.engine->explain(NodeId("node-0"), "Slurm job 2 was preempted", true);
  CHECK(reason() == before);
}

TEST_CASE("a word on a machine's end says nothing of what its node has come back from") {
  Far world(1);
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.begin(id);
  world.engine->gone(NodeId("node-0"));
  world.advance(61s);
  world.join("node-0");
  world.engine->explain(NodeId("node-0"), "Slurm job 2 was preempted");
  const std::string reason = world.engine->job(id).at("attempts").at(0).at("reason");
  CHECK(reason.starts_with("node-0 was lost: not heard of"));
  CHECK(reason.find("preempted") == std::string::npos);
}

TEST_CASE("what ends with a machine that its provider has taken back is no failure") {
  Far world(2);
  JobSpec spec = over(2);
  spec.max_restarts = 1;
  spec.restart.count = {"node_lost"};
  const NodeId node("node-1");
  const std::string word = "Server.SpotInstanceTermination: no capacity";
  const JobId id = world.submit(spec);
  world.started("node-0", id, 1);
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.started("node-1", id, 1);
  world.start_ranks("node-0", id, 1, 0, 1);
  world.start_ranks("node-1", id, 1, 1, 1);
  const auto lose = [&] {
    world.engine->gone(node);
    for (int i = 0; i < 4; ++i) {
      world.advance(10s);
      world.engine->heard(NodeId("node-0"));
    }
  };
  const auto restarts = [&] { return world.engine->job(id).at("restarts").get<int>(); };
  const auto end_there = [&] {
    world.exit_rank("node-0", id, 1, 0, 15, true);
    world.finish("node-0", id, 1, Outcome::stopped);
    world.until([&] { return world.state(id) == "restarting"; });
  };
  SUBCASE("as is known before it is lost") {
    world.engine->explain(node, word, true);
    lose();
    end_there();
    CHECK(restarts() == 0);
  }
  SUBCASE("as is known before the attempt has ended, which another rank has failed") {
    world.exit_rank("node-0", id, 1, 0, 1);
    world.finish("node-0", id, 1, Outcome::failed);
    world.engine->explain(node, word, true);
    lose();
    world.until([&] { return world.state(id) == "restarting"; });
    CHECK(restarts() == 0);
  }
  SUBCASE("as is known when the restart was counted") {
    lose();
    end_there();
    CHECK(restarts() == 1);
    for (int i = 0; i < 2; ++i) world.engine->explain(node, word, true);
    CHECK(restarts() == 0);
    world.settle();
    world.restart();
    CHECK(restarts() == 0);
  }
  SUBCASE("and the machine of another node, which was not lost first, is no excuse") {
    lose();
    end_there();
    world.engine->explain(NodeId("node-0"), word, true);
    CHECK(restarts() == 1);
    CHECK(world.engine->job(id).at("attempts").at(0).at("failure") == "node_lost");
  }
  SUBCASE("and what ends with another is one") {
    world.engine->explain(node, "Client.UserInitiatedShutdown", false);
    lose();
    end_there();
    CHECK(restarts() == 1);
  }
}

TEST_CASE("a node that leaves by itself is shown with its reason until its place is taken") {
  Far world(2);
  const NodeId node("node-1");
  const auto shown = [&] { return row_of(world, "node-1"); };
  world.engine->leaving(NodeId("node-9"), "is unknown", true);
  world.engine->leaving(node, "its container ended", false);
  CHECK(shown().at("state") == "draining");
  CHECK(shown().at("reason") == "about to leave: its container ended");
  CHECK_THROWS_AS(world.drain(node.str(), true), Error);
  bool left = false;
  world.engine->leaving(node, "its container ended", true, [&] { left = true; });
  CHECK_FALSE(left);  // it is not on the disk yet
  CHECK(world.given_up == std::vector<NodeId>{node});
  const auto expected = [&] { return world.engine->status().at("cluster").at("expected_nodes"); };
  const auto remove = [&] {
    nlohmann::json answer;
    world.engine->remove_node(node, false, [&](nlohmann::json a) { answer = a; });
    world.revoking(std::nullopt);
    world.until([&] { return !answer.is_null(); });
    CHECK(answer.at("state") == "gone");
  };
  // Also by a head that is started anew.
  world.settle();
  CHECK(left);
  world.restart();
  CHECK(shown().at("state") == "gone");
  CHECK(shown().at("reason") == "its container ended");
  SUBCASE("by another") {
    world.join("node-2");
    CHECK(shown().empty());
    remove();
    CHECK(expected() == 2);  // it was counted no more
  }
  SUBCASE("by another, which leaves too: the last is shown") {
    world.join("node-2");
    world.engine->leaving(NodeId("node-2"), "its container ended", true);
    CHECK(shown().empty());
    CHECK(world.engine->status().at("nodes").size() == 2);
  }
  SUBCASE("by itself") {
    world.join("node-1");
    CHECK(shown().at("state") == "ready");
    CHECK(shown().at("reason") == "");
  }
  SUBCASE("by nobody, when it is removed") {
    CHECK(world.drain(node.str()).at("state") == "gone");
    CHECK_THROWS_AS(world.drain(node.str(), true), Error);
    remove();
    CHECK(expected() == 1);
    CHECK(shown().empty());
    CHECK_THROWS_AS(world.engine->remove_node(node, false, {}), Error);
  }
}

TEST_CASE("a node that joins while it is about to leave is given nothing") {
  Far world(2);
  world.join("node-1", {}, 4, "its container was told to end (SIGTERM)");
  CHECK(state_of(world, "node-1") == "draining");
  const JobId id = world.submit(over(2));
  world.settle();
  CHECK_FALSE(world.was_started(id, 1));
  CHECK(world.starts.empty());
  world.join("node-1");
  CHECK(world.started("node-0", id, 1).nnodes == 2);
}

TEST_CASE("a node that is killed before it has left is lost, with why it was about to leave") {
  Far world(2);
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.begin(id);
  world.engine->leaving(NodeId("node-0"), "its container was told to end (SIGTERM)", false);
  world.engine->gone(NodeId("node-0"));
  CHECK(state_of(world, "node-0") == "draining");
  world.engine->heard(NodeId("node-1"));
  world.advance(31s);
  CHECK(state_of(world, "node-0") == "lost");
  CHECK(world.engine->status().at("nodes").at(0).at("reason").get<std::string>().find(
            ", after its container was told to end (SIGTERM)") != std::string::npos);
  CHECK_FALSE(world.was_started(id, 2));  // its ranks may live until their lease is over
}

TEST_CASE("an attempt that begins while a node of it goes does not start") {
  Far world(2);
  const JobId id = world.submit(over(2));
  world.shut_door();
  world.until([&] { return world.waiting_at_door("starting"); });
  std::string reason;
  SUBCASE("it leaves") {
    world.engine->leaving(NodeId("node-1"), "told to", false);
    world.engine->leaving(NodeId("node-1"), "told to", true);
    reason = "node-1 leaves the cluster: told to";
  }
  SUBCASE("it is removed") {
    world.engine->remove_node(NodeId("node-1"), true, [](const nlohmann::json&) {});
    world.revoking(std::nullopt);
    reason = "node-1 was removed from the cluster";
  }
  world.open_door();
  // It begins anew when there is another.
  world.until([&] { return world.state(id) == "restarting"; });
  CHECK(world.starts.empty());
  CHECK(world.engine->job(id).at("attempts").at(0).at("reason") == reason);
}

TEST_CASE("that its node was removed is the cause, whichever is known first") {
  Far world(2);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  world.engine->remove_node(NodeId("node-0"), true, [](const nlohmann::json&) {});
  const auto finish = [&] {
    world.finish("node-0", id, 1, Outcome::stopped, "attempt 1 of " + id.str() + " was given up");
  };
  SUBCASE("the end") {
    finish();
    world.revoking(std::nullopt);
  }
  SUBCASE("the removal") {
    world.revoking(std::nullopt);
    finish();
  }
  world.until([&] { return world.state(id) == "restarting"; });
  CHECK(world.engine->job(id).at("attempts").at(0).at("reason") ==
        "node-0 was removed from the cluster");
}

TEST_CASE("a node that is being removed gets nothing, and stays when it cannot be") {
  Far world(1);
  nlohmann::json answer;
  world.engine->remove_node(NodeId("node-0"), false, [&](nlohmann::json a) { answer = a; });
  const JobId id = world.submit(World::spec());
  world.settle();
  CHECK(world.starts.empty());
  CHECK(world.engine->job(id).at("reason").get<std::string>().find("is being removed") !=
        std::string::npos);
  world.revoking(Error(ErrorCode::io, "the disk is full"));
  CHECK(answer.at("error").at("message") == "the disk is full");
  CHECK(state_of(world, "node-0") == "ready");
  world.started("node-0", id, 1);
}

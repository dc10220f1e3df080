#include <doctest/doctest.h>

#include "agent/head/engine/queue.hpp"
#include "agent/head/engine/spares.hpp"
#include "tests/agent/head/engine/world.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using namespace std::chrono_literals;
using Outcome = wire::NodeFinished::Outcome;

namespace {

using Names = std::vector<std::string>;

NodeCapacity idle_node(const std::string& name) {
  NodeCapacity node;
  node.node = NodeId(name);
  node.cpus = 4;
  node.memory = std::uint64_t{8} << 30;
  return node;
}

JobSpec whole_nodes(int count, int spares) {
  JobSpec job = World::spec();
  job.nnodes = {count, count};
  job.nproc_per_node.number = 4;
  job.spares = spares;
  return job;
}

Names names(const std::vector<PlacedShare>& shares) {
  Names all;
  for (const PlacedShare& share : shares) all.push_back(share.node.str());
  return all;
}

PlacedShare whole(const std::string& node) {
  PlacedShare share;
  share.node = NodeId(node);
  share.nproc = 4;
  share.cpus = 4;
  return share;
}

// A job of two nodes that keeps a spare, on three.
struct Spared : World {
  explicit Spared(int nodes = 3, bool sent = false) : World(nodes) {
    for (int i = 0; i < nodes; ++i) join("node-" + std::to_string(i));
    JobSpec spec = whole_nodes(2, 1);
    spec.max_restarts = 1;
    if (sent) {
      spec.content.emplace();
      spec.content->workdir_tree = std::string(64, 'a');
      spec.content->size = 1000;
    }
    job = submit(spec);
    if (!sent) run(1, {"node-0", "node-1"});
  }
  void stage(const NodeId& node, const wire::Stage& wanted) override {
    staged.emplace_back(node.str(), wanted.attempt);
  }
  void unstage(const NodeId& node, const JobId&, int attempt) override {
    given_back.emplace_back(node.str(), attempt);
  }

  void run(int attempt, const Names& on) {
    started(on[0], job, attempt);
    say(on[0], job, attempt, wire::MasterReady{29500});
    started(on[1], job, attempt);
    start_ranks(on[0], job, attempt, 0, 4);
    start_ranks(on[1], job, attempt, 4, 4);
    until([&] { return state(job) == "running"; });
    settle();
  }
  nlohmann::json spares() { return engine->job(job).at("spares"); }
  Names nodes_of(int attempt) {
    Names all;
    const nlohmann::json told = engine->job(job);
    for (const auto& each : told.at("attempts").at(attempt - 1).at("nodes")) {
      all.push_back(each.at("node"));
    }
    return all;
  }
  int said(const std::string& part) { return World::said(job, part); }
  // The node says that it leaves: no lease is waited for.
  void take_away(const std::string& node, int attempt) {
    engine->leaving(NodeId(node), "its container was told to end", false);
    for (const std::string& each : nodes_of(attempt)) {
      finish(each, job, attempt, Outcome::stopped, "told to stop");
    }
  }

  JobId job;
  std::vector<std::pair<std::string, int>> staged;
  std::vector<std::pair<std::string, int>> given_back;
};

}  // namespace

TEST_CASE("spares: what is free, by priority and age, and what one has it keeps") {
  const std::vector<NodeCapacity> nodes{idle_node("n-1"), idle_node("n-2"), idle_node("n-10")};
  const auto want = [](const std::string& job, int priority, std::size_t count,
                       std::vector<NodeId> has = {}) {
    return SpareWant{JobId(job), priority, 0, demand_of(whole_nodes(2, 1)), count, {}, has};
  };
  SpareDecision decision = decide_spares(nodes, {}, {want("a", 0, 2), want("b", 1, 2)});
  CHECK(names(decision.spares[JobId("b")]) == Names{"n-1", "n-2"});
  CHECK(names(decision.spares[JobId("a")]) == Names{"n-10"});
  CHECK(decision.reasons[JobId("a")] == "no node is free for 1 spare");
  CHECK_FALSE(decision.reasons.contains(JobId("b")));
  // Not on its own nodes; what it has before what another would like.
  SpareWant other = want("a", 0, 1, {NodeId("n-1")});
  SpareWant first = want("b", 5, 3);
  first.not_on = {NodeId("n-2")};
  decision = decide_spares(nodes, {}, {other, first});
  CHECK(names(decision.spares[JobId("a")]) == Names{"n-1"});
  CHECK(names(decision.spares[JobId("b")]) == Names{"n-10"});
  CHECK(decision.reasons[JobId("b")] == "no node is free for 2 spares");
  // One that is not connected stays a spare while it is waited for, and becomes none.
  std::vector<NodeCapacity> away = nodes;
  away[0].usable = away[1].usable = false;
  decision = decide_spares(away, {NodeId("n-1")}, {other, want("b", 5, 2)});
  CHECK(names(decision.spares[JobId("a")]) == Names{"n-1"});
  CHECK(names(decision.spares[JobId("b")]) == Names{"n-10"});
  decision = decide_spares(away, {}, {other});
  CHECK(names(decision.spares[JobId("a")]) == Names{"n-10"});
  // Before the jobs that wait have been looked at nothing takes its place.
  other.takes_new = false;
  decision = decide_spares(away, {}, {other});
  CHECK(decision.spares[JobId("a")].empty());
}

TEST_CASE("queue: a job begins anew on what is kept for it, its own nodes first") {
  std::vector<NodeCapacity> nodes{idle_node("n-1"), idle_node("n-2"), idle_node("n-3"),
                                  idle_node("n-4")};
  WaitingJob job{JobId("a"), 0, 1, demand_of(whole_nodes(2, 1)), ""};
  job.kept = {{whole("n-2"), whole("n-3")}, {whole("n-1")}, 2};
  const auto on = [&](const WaitingJob& who) {
    std::vector<NodeCapacity> used = nodes;
    for (NodeCapacity& node : used) {
      for (const auto* list : {&who.kept.gang, &who.kept.spares}) {
        for (const PlacedShare& share : *list) {
          if (share.node == node.node) use(node, share);
        }
      }
    }
    return place_on_kept(used, who);
  };
  CHECK(names(*on(job)) == Names{"n-2", "n-3"});
  job.kept.gang = {whole("n-3")};
  CHECK(names(*on(job)) == Names{"n-1", "n-3"});
  job.kept.gang = {whole("n-2"), whole("n-3")};
  job.avoids = {NodeId("n-2")};
  CHECK(names(*on(job)) == Names{"n-1", "n-3"});
  job.kept.spares.clear();
  CHECK(names(*on(job)) == Names{"n-2", "n-3"});
  job.kept.gang = {whole("n-2")};
  CHECK_FALSE(on(job).has_value());
}

TEST_CASE("queue: what is kept for one job is no other's, and that is said") {
  std::vector<NodeCapacity> nodes{idle_node("n-1"), idle_node("n-2")};
  use(nodes[0], whole("n-1"));
  use(nodes[1], whole("n-2"));
  nodes[1].kept = "is kept as a spare of train-abcdef";
  WaitingJob other{JobId("other"), 9, 1, demand_of(whole_nodes(1, 0)), ""};
  WaitingJob owner{JobId("train-abcdef"), 0, 2, demand_of(whole_nodes(1, 1)), ""};
  owner.kept = {{}, {whole("n-2")}, 1};
  const QueueDecision decision = decide_queue(nodes, {other, owner}, 0);
  CHECK(decision.reasons.at(JobId("other")) ==
        "needs 4 CPUs on a node; n-2 is kept as a spare of train-abcdef, n-1 has 0 of 4 CPUs free");
  // And it is there for that one, though another waits before it.
  REQUIRE(decision.starts.size() == 1);
  CHECK(decision.starts[0].job == JobId("train-abcdef"));
  CHECK(names(decision.starts[0].shares) == Names{"n-2"});
}

TEST_CASE("queue: a job for which what is kept does not do gives that up, once it may start") {
  std::vector<NodeCapacity> nodes{idle_node("n-1"), idle_node("n-2")};
  use(nodes[0], whole("n-1"));
  WaitingJob owner{JobId("owner"), 0, 1, demand_of(whole_nodes(3, 1)), ""};
  owner.kept = {{whole("n-1")}, {}, 3};
  WaitingJob other{JobId("other"), 0, 2, demand_of(whole_nodes(2, 0)), ""};
  const auto gave_up = [&](const WaitingJob& who) {
    return decide_queue(nodes, {who, other}, 0).gave_up == std::vector<JobId>{JobId("owner")};
  };
  CHECK(gave_up(owner));
  WaitingJob held = owner;
  held.held = "waits";
  CHECK_FALSE(gave_up(held));
  // Its node may be there in a moment: until then it is nobody else's.
  owner.kept.away = true;
  CHECK_FALSE(gave_up(owner));
  CHECK(decide_queue(nodes, {owner, other}, 0).starts.empty());
}

TEST_CASE("the GPUs of a job that cannot begin anew go to one other job") {
  World world(2);
  for (const std::string node : {"node-0", "node-1"}) {
    NodeInfo info = World::info_of(node);
    info.gpus = 2;
    world.engine->joined(info);
    world.beat(node);
  }
  JobSpec spec = World::spec();
  spec.nproc_per_node.number = 2;
  spec.resources.gpu = 1;
  spec.nnodes = {2, 2};
  spec.spares = 1;
  spec.max_restarts = 1;
  const JobId first = world.submit(spec);
  world.started("node-0", first, 1);
  world.say("node-0", first, 1, wire::MasterReady{29500});
  world.started("node-1", first, 1);
  spec.nnodes = {1, 1};
  spec.spares = 0;
  const JobId second = world.submit(spec);
  const JobId third = world.submit(spec);
  world.engine->leaving(NodeId("node-1"), "its container was told to end", false);
  for (const char* node : {"node-0", "node-1"}) {
    world.finish(node, first, 1, Outcome::stopped, "told to stop");
  }
  world.until([&] { return world.was_started(second, 1); });
  world.settle();
  world.submit(World::spec());  // the queue is looked at again
  world.settle();
  CHECK_FALSE(world.was_started(third, 1));
  CHECK_FALSE(world.was_started(first, 2));
  // Nor does a head that is started anew take them for the first one's.
  world.restart();
  NodeInfo info = World::info_of("node-0");
  info.gpus = 2;
  info.attempts = {{second, 1}};
  world.engine->joined(info);
  world.beat("node-0");
  for (auto gone_by = 0s; gone_by < 120s; gone_by += 5s) {  // and node-1 is lost
    world.engine->heard(NodeId("node-0"));
    world.advance(5s);
  }
  CHECK_FALSE(world.was_started(third, 1));
}

TEST_CASE("what a job cannot begin anew on is there for those before it") {
  World world(3);
  for (const char* node : {"node-0", "node-1", "node-2"}) world.join(node);
  JobSpec spec = whole_nodes(3, 1);
  spec.max_restarts = 1;
  const JobId spared = world.submit(spec);
  world.started("node-0", spared, 1);
  world.say("node-0", spared, 1, wire::MasterReady{29500});
  for (const char* node : {"node-1", "node-2"}) world.started(node, spared, 1);
  JobSpec urgent = whole_nodes(2, 0);
  urgent.priority = 9;
  const JobId other = world.submit(urgent);
  world.engine->leaving(NodeId("node-1"), "its container was told to end", false);
  for (const char* node : {"node-0", "node-1", "node-2"}) {
    world.finish(node, spared, 1, Outcome::stopped, "told to stop");
  }
  world.until([&] { return world.was_started(other, 1); });
  CHECK(world.state(spared) == "restarting");
}

TEST_CASE("what is kept stays so while a node of it is not connected for a moment") {
  Spared world(2);
  const JobId other = world.submit(whole_nodes(1, 0));
  world.exit_rank("node-0", world.job, 1, 0, 1);
  world.finish("node-0", world.job, 1, Outcome::failed);
  world.finish("node-1", world.job, 1, Outcome::stopped, "told to stop");
  world.engine->gone(NodeId("node-1"));
  world.settle();
  CHECK(world.state(world.job) == "restarting");
  CHECK_FALSE(world.was_started(other, 1));
  world.join("node-1");
  world.until([&] { return world.was_started(world.job, 2); });
}

TEST_CASE("a spare is prepared while the job runs, and takes the place of a node that leaves") {
  Spared world;
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  CHECK(world.spares() == nlohmann::json::array({{{"node", "node-2"}, {"ready", true}}}));
  // It was tried with each of the job's, as its own were with each other.
  REQUIRE(world.pair_tests.size() == 2);
  CHECK(world.pair_tests[1][0].node == NodeId("node-2"));
  CHECK(world.pair_tests[1].size() == 3);
  CHECK(world.engine->nodes_in_use().at(NodeId("node-2")) ==
        "it is kept as a spare of " + world.job.str());
  CHECK(world.engine->status().at("nodes")[2].at("spare_of") == world.job.str());
  // Nobody else gets it.
  const JobId other = world.submit(whole_nodes(1, 0));
  world.settle();
  CHECK(world.engine->job(other).at("reason").get<std::string>().find(
            "node-2 is kept as a spare of " + world.job.str()) != std::string::npos);
  world.take_away("node-1", 1);
  world.until([&] { return world.was_started(world.job, 2); });
  CHECK(world.nodes_of(2) == Names{"node-0", "node-2"});
  CHECK(world.said("on node-0, node-2; node-2 was its spare"));
  world.run(2, {"node-0", "node-2"});
  CHECK(world.spares().empty());
  CHECK(world.engine->job(world.job).at("spare_reason") == "no node is free for 1 spare");
  CHECK(world.engine->job(world.job).at("reason") == "no node is free for 1 spare");
  // What comes is for jobs that wait, then for spares.
  world.join("node-3");
  world.until([&] { return world.was_started(other, 1); });
  CHECK(world.spares().empty());
  world.join("node-4");
  world.until([&] { return world.said("node-4 is ready as a spare"); });
}

TEST_CASE("a lost node's place is taken by the spare once its lease is over") {
  Spared world;
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  const JobId other = world.submit(whole_nodes(1, 0));
  world.settle();
  world.engine->gone(NodeId("node-1"));
  const auto pass = [&](std::chrono::seconds time) {
    for (auto gone_by = 0s; gone_by < time; gone_by += 5s) {
      for (const char* name : {"node-0", "node-2"}) world.engine->heard(NodeId(name));
      world.advance(5s);
    }
  };
  pass(30s);
  world.finish("node-0", world.job, 1, Outcome::stopped, "told to stop");
  world.settle();
  CHECK(world.state(world.job) == "restarting");
  // Until then neither the spare nor what is left of its own is anybody else's.
  CHECK(world.state(other) == "queued");
  CHECK_FALSE(world.was_started(world.job, 2));
  pass(35s);
  world.until([&] { return world.was_started(world.job, 2); });
  CHECK(world.nodes_of(2) == Names{"node-0", "node-2"});
  CHECK(world.state(other) == "queued");
}

TEST_CASE("a job that is stopped before it begins anew gives its spares back") {
  Spared world;
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  world.engine->gone(NodeId("node-1"));
  for (auto gone_by = 0s; gone_by < 30s; gone_by += 5s) {
    for (const char* name : {"node-0", "node-2"}) world.engine->heard(NodeId(name));
    world.advance(5s);
  }
  world.finish("node-0", world.job, 1, Outcome::stopped, "told to stop");
  world.settle();
  REQUIRE(world.state(world.job) == "restarting");
  REQUIRE(world.given_back.empty());
  world.engine->stop(world.job, std::nullopt, [](const nlohmann::json&) {});
  world.until([&] { return world.state(world.job) == "stopped"; });
  CHECK(world.given_back == std::vector<std::pair<std::string, int>>{{"node-2", 2}});
  CHECK(world.spares().empty());
  world.settle();
  world.restart();
  CHECK(world.spares().empty());
}

TEST_CASE("after the failure of a rank a job begins anew on its own nodes, and keeps its spare") {
  Spared world;
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  const auto fail = [&](int attempt) {
    world.exit_rank("node-0", world.job, attempt, 0, 1);
    world.finish("node-0", world.job, attempt, Outcome::failed);
    world.finish("node-1", world.job, attempt, Outcome::stopped, "told to stop");
  };
  fail(1);
  world.until([&] { return world.was_started(world.job, 2); });
  CHECK(world.nodes_of(2) == Names{"node-0", "node-1"});
  CHECK(world.spares()[0].at("node") == "node-2");
  world.run(2, {"node-0", "node-1"});
  // It is prepared for the attempt after that one.
  world.until([&] { return world.pair_tests.size() == 4; });
  CHECK(world.pair_tests[3][0].node == NodeId("node-2"));
  world.settle();
  fail(2);
  world.until([&] { return world.state(world.job) == "failed"; });
  CHECK(world.spares().empty());
  // The end gives it back.
  const JobId other = world.submit(whole_nodes(3, 0));
  world.until([&] { return world.was_started(other, 1); });
}

TEST_CASE(
    "a job starts without its spares, which come when there is room; a lost one is replaced") {
  Spared world(2);
  CHECK(world.engine->job(world.job).at("spare_reason") == "no node is free for 1 spare");
  world.join("node-2");
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  CHECK(world.engine->job(world.job).at("spare_reason") == "");
  world.join("node-3");
  world.drain("node-2");
  world.until([&] { return world.said("node-3 is ready as a spare"); });
  CHECK(world.said("node-2 is no spare any more"));
  CHECK(world.engine->is_drained(NodeId("node-2")));
  // One that is only not connected for a moment stays it.
  world.engine->gone(NodeId("node-3"));
  world.settle();
  CHECK(world.spares()[0].at("node") == "node-3");
}

TEST_CASE("a head that is started anew has the same spares, before anybody else gets them") {
  Spared world(4);
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  world.drain("node-2");
  world.until([&] { return world.said("node-3 is ready as a spare"); });
  world.drain("node-2", true);
  world.settle();
  const JobId other = world.submit(whole_nodes(2, 0));
  world.settle();
  CHECK(world.state(other) == "queued");
  world.restart();
  world.join("node-3");
  world.join("node-2");
  world.settle();
  CHECK(world.state(other) == "queued");
  CHECK(world.spares()[0].at("node") == "node-3");
  world.join("node-0", {{world.job, 1}});
  world.join("node-1", {{world.job, 1}});
  world.until([&] { return world.spares()[0].at("ready") == true; });
  world.take_away("node-0", 1);
  world.until([&] { return world.was_started(world.job, 2); });
  CHECK(world.nodes_of(2) == Names{"node-1", "node-3"});
}

TEST_CASE("a spare that cannot be prepared is said, and replaced") {
  Spared world(3);
  world.pairs_pass = false;
  world.until([&] { return world.said("node-2 is ready as a spare"); });
  world.drain("node-2");
  world.join("node-3");
  world.until([&] { return world.pair_tests.size() == 3; });
  world.engine->pairs_checked(
      world.job, 2, {{"node-3 does not reach node-0", {NodeId("node-3"), NodeId("node-0")}}});
  world.until([&] { return world.said("node-3 cannot be a spare: node-3 does not reach node-0"); });
  world.settle();
  CHECK(world.engine->job(world.job).at("spare_reason") ==
        "no node is free for 1 spare; node-3 cannot be one: node-3 does not reach node-0");
  CHECK(world.state(world.job) == "running");
}

TEST_CASE("what is wrong between the job's own nodes rules no spare out, which is tried again") {
  Spared world(2);
  world.pairs_pass = false;
  world.join("node-2");
  world.until([&] { return world.pair_tests.size() == 2; });
  const NodeId own("node-0");
  world.engine->pairs_checked(world.job, 2,
                              {{"node-2 does not reach node-0", {NodeId("node-2"), own}},
                               {"node-0 did not answer", {own}}});
  world.settle();
  CHECK(world.said("node-2 could not be tried as a spare, and will be again in 1"));
  const auto pass = [&](std::chrono::seconds time) {
    for (auto gone_by = 0s; gone_by < time; gone_by += 5s) {
      for (const char* name : {"node-0", "node-1", "node-2"}) world.engine->heard(NodeId(name));
      world.advance(5s);
    }
  };
  pass(55s);
  CHECK(world.pair_tests.size() == 2);
  CHECK(world.spares()[0].at("node") == "node-2");
  pass(5s);
  world.until([&] { return world.pair_tests.size() == 3; });
  world.engine->pairs_checked(world.job, 2, {});
  world.until([&] { return world.said("node-2 is ready as a spare"); });
}

TEST_CASE("a spare has the job's content as the next attempt will want it") {
  Spared world(3, true);
  const auto all_staged = [&](std::size_t count) {
    world.until([&] { return world.staged.size() == count; });
  };
  all_staged(2);
  for (const char* node : {"node-0", "node-1"}) {
    world.engine->staging(NodeId(node), {world.job, 1, 1000, 1000, true});
  }
  world.run(1, {"node-0", "node-1"});
  all_staged(3);
  CHECK(world.staged[2] == std::pair<std::string, int>("node-2", 2));
  CHECK(world.engine->content_for(NodeId("node-2"), world.job, 2).has_value());
  CHECK_FALSE(world.engine->content_for(NodeId("node-2"), world.job, 3).has_value());
  CHECK(world.spares()[0].at("ready") == false);
  SUBCASE("and is ready then") {
    world.engine->staging(NodeId("node-2"), {world.job, 2, 1000, 1000, true});
    world.until([&] { return world.said("node-2 is ready as a spare"); });
    world.take_away("node-1", 1);
    all_staged(5);  // as of any attempt, and there it is in place
    CHECK(world.staged[4] == std::pair<std::string, int>("node-2", 2));
    CHECK(world.given_back.empty());
  }
  SUBCASE("or it is none") {
    world.engine->start_failed(NodeId("node-2"), world.job, 2, Error(ErrorCode::io, "disk full"));
    world.until([&] { return world.said("node-2 cannot be a spare: disk full"); });
    world.settle();
    CHECK(world.spares().empty());
    CHECK(world.state(world.job) == "running");
  }
  SUBCASE("what it has goes with the job") {
    world.engine->stop(world.job, std::nullopt, [](const nlohmann::json&) {});
    for (const char* node : {"node-0", "node-1"}) {
      world.finish(node, world.job, 1, Outcome::stopped, "told to stop");
    }
    world.until([&] { return world.state(world.job) == "stopped"; });
    CHECK(world.given_back.size() == 1);
    world.engine->remove(world.job, [](const nlohmann::json&) {});
    world.until([&] { return world.forgotten.size() == 3; });
  }
}

namespace {

MachinesToCome machines_of_one_type(int there, int most) {
  MachinesToCome machines;
  MachineType type;
  type.name = "m";
  type.each = idle_node("");
  type.known = true;
  type.there = there;
  type.most = most;
  machines.types = {type};
  machines.most = most;
  return machines;
}

}  // namespace

TEST_CASE("machines are asked for spares too, after what jobs need") {
  World world(1);
  world.join("node-0");
  const JobId spared = world.submit(whole_nodes(1, 2));
  world.started("node-0", spared, 1);
  world.settle();
  const MachinesToCome machines = machines_of_one_type(0, 10);
  world.engine->expect_machines(machines);
  JobSpec later = whole_nodes(3, 0);
  later.priority = -5;
  const JobId other = world.submit(later);
  world.settle();
  const Growth& growth = world.engine->expect_machines(machines);
  REQUIRE(growth.gangs.size() == 3);
  CHECK(growth.gangs[0] == Growth::Gang{other, "m", 3});
  CHECK(growth.gangs[1] == Growth::Gang{spared, "m", 1});
  CHECK(growth.gangs[2] == Growth::Gang{spared, "m", 1});
  CHECK(world.engine->job(spared)
            .at("spare_reason")
            .get<std::string>()
            .starts_with("no node is free for 2 spares; asks for 1 machine of type m"));
}

TEST_CASE("a spare for which there may be no machine makes no other go") {
  World world(1);
  world.join("node-0");
  const JobId spared = world.submit(whole_nodes(1, 1));
  world.started("node-0", spared, 1);
  world.settle();
  const MachinesToCome machines = machines_of_one_type(1, 1);
  world.engine->expect_machines(machines);
  const Growth& growth = world.engine->expect_machines(machines);
  CHECK(growth.gangs.empty());
  CHECK_FALSE(growth.short_of_room);
  CHECK(world.engine->job(spared).at("spare_reason") == "no node is free for 1 spare");
}

#include <doctest/doctest.h>

#include <fstream>

#include "agent/head/store/checkpoints.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/agent/head/engine/world.hpp"

// Clusters whose nodes are machines of their own, the head's among them or not.

using namespace dtrain;
using namespace dtrain::head;
using dtrain::head::testing::World;
using Outcome = wire::NodeFinished::Outcome;
using namespace std::chrono_literals;

namespace {

nlohmann::json row_of(const World& world, const std::string& node) {
  const nlohmann::json status = world.engine->status();
  for (const auto& each : status.at("nodes")) {
    if (each.at("node") == node) return each;
  }
  return nlohmann::json::object();
}

std::string state_of(const World& world, const std::string& node) {
  return row_of(world, node).value("state", "not listed");
}

NodeInfo joined_by_itself() {
  NodeInfo info;
  info.node = NodeId("joined-1");
  info.machine = "machine-joined";
  info.cpus = 4;
  info.joined = true;
  return info;
}

struct Far : World {
  explicit Far(int nodes) : World(nodes) {
    options.machine = "machine-head";
    restart();
    for (int i = 0; i < nodes; ++i) join("node-" + std::to_string(i));
  }

  // Its one rank, on node-0, runs; the next event is the third.
  void begin(const JobId& id) {
    started("node-0", id, 1);
    say("node-0", id, 1, wire::MasterReady{29500});
    start_ranks("node-0", id, 1, 0, 1);
  }

  // A shard of one file comes.
  static void deliver(const Fetch& fetch) {
    fs::create_directories(fetch.folder);
    std::ofstream(fetch.folder / "model") << "weights";
    const FileSum sum = sum_file(fetch.folder / "model");
    fetch.done(std::nullopt, {{"model", sum.size, sum.sha256}});
  }
};

JobSpec over(int nodes) {
  JobSpec spec = World::spec();
  spec.nnodes = {nodes, nodes};
  return spec;
}

}  // namespace

TEST_CASE("ranks of several machines start once their nodes have reached each other") {
  Far world(2);
  world.pairs_pass = false;
  const JobId id = world.submit(over(2));
  world.until([&] { return !world.pair_tests.empty(); });
  world.settle();
  CHECK(world.starts.empty());
  REQUIRE(world.pair_tests[0].size() == 2);
  CHECK(world.pair_tests[0][1].address == "10.0.0.1");
  world.engine->pairs_checked(id, 7, {{"of another attempt", {}}});
  CHECK(world.starts.empty());
  world.engine->pairs_checked(id, 1, {});
  const wire::AttemptSpec spec = world.started("node-0", id, 1);
  CHECK(spec.master_addr == "10.0.0.0");
  CHECK(spec.node_ips == std::vector<std::string>{"10.0.0.0", "10.0.0.1"});
  // Said again, it changes nothing.
  world.engine->pairs_checked(id, 1, {{"too late", {}}});
  CHECK(world.state(id) == "starting");
}

TEST_CASE("nodes have what their type says") {
  World world(2);
  world.join("node-0");
  world.join("node-1");
  NodeInfo joined = joined_by_itself();
  joined.type = "big";
  world.engine->joined(joined);
  wire::NodeTypes types;
  types.types = {{"none", 0, {}, {}, {}, {}},
                 {"big", {}, 8, 1e12, {{"tpu", 2}}, {{"tier", "gold"}}}};
  types.nodes = {{"node-0", "none"}, {"joined-1", "none"}};
  CHECK(wire::node_types_from_json(wire::to_json(types)) == types);
  world.engine->set_node_types(types);
  const auto has = [&](const char* node) { return *world.engine->capacity(NodeId(node)); };
  CHECK(has("node-0").cpus == 0);
  CHECK(has("node-1").cpus == 4);
  CHECK(has("joined-1").gpus == 0);  // no more than it has itself
  CHECK(has("joined-1").memory == joined.memory);
  CHECK(has("joined-1").labels == std::map<std::string, std::string>{{"tier", "gold"}});
  JobSpec spec = World::spec();
  spec.custom_resources = {{"tpu", 2}};
  spec.resources_given = true;
  const JobId first = world.submit(spec);
  CHECK(world.started("joined-1", first, 1).nproc == 1);
  const JobId second = world.submit(spec);
  world.settle();
  CHECK(world.engine->job(second).at("reason") ==
        "needs 1 CPU, 2 tpu on a node; joined-1 has 0 of 2 tpu free, node-0 has 0 of 0 CPUs free, "
        "node-1 has no tpu");
  const JobId plain = world.submit(World::spec());
  world.started("node-1", plain, 1);
  spec.custom_resources = {{"tpu", 3}};
  CHECK_THROWS_WITH_AS(world.engine->check_fits(spec), doctest::Contains("has 2 of 2 tpu free"),
                       Error);
}

TEST_CASE("what a type is said to have takes the place of what was said before") {
  World world(1);
  MachinesToCome machines;
  MachineType& type = machines.types.emplace_back();
  type.name = "gpu";
  type.most = machines.most = 2;
  type.known = true;
  type.each.cpus = type.each.gpus = 8;
  world.engine->expect_machines(machines);
  const auto has = [&](int gpus) {
    wire::NodeTypes types;
    types.types = {{"gpu", {}, gpus, {}, {}, {}}};
    world.engine->set_node_types(types);
  };
  JobSpec spec = World::spec();
  spec.resources.gpu = 3;
  spec.resources_given = true;
  has(1);
  CHECK_THROWS_AS(world.engine->check_fits(spec), Error);
  has(4);
  world.engine->check_fits(spec);
}

TEST_CASE("a pair that cannot talk fails the attempt by name, and nothing was started") {
  Far world(2);
  world.pairs_pass = false;
  JobSpec spec = over(2);
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  world.until([&] { return world.pair_tests.size() == 1; });
  world.engine->pairs_checked(id, 1, {{"node-0 does not reach node-1 at 10.0.0.1 port 4321", {}}});
  world.until([&] { return world.pair_tests.size() == 2; });
  world.engine->pairs_checked(id, 2, {{"node-0 does not reach node-1 at 10.0.0.1 port 4321", {}}});
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.starts.empty());
  const auto job = world.engine->job(id);
  CHECK(job.at("reason").get<std::string>().find("10.0.0.1 port 4321") != std::string::npos);
  CHECK(job.at("error").at("message").get<std::string>().find("node-0") != std::string::npos);
}

TEST_CASE("a pair test whose node went away is done again when it is back") {
  Far world(2);
  world.pairs_pass = false;
  const JobId id = world.submit(over(2));
  world.until([&] { return world.pair_tests.size() == 1; });
  world.engine->gone(NodeId("node-1"));
  world.engine->pairs_checked(id, 1,
                              {{"node-0 does not reach node-1", {}}});  // because it was away
  CHECK(world.state(id) == "starting");
  world.pairs_pass = true;
  world.join("node-1");
  world.started("node-0", id, 1);
}

TEST_CASE("the node beside the head is met where the others meet the head") {
  World world(2);
  world.options.machine = "machine-node-0";
  world.restart();
  NodeInfo info = World::info_of("node-0");
  info.address = "127.0.0.1";
  info.head_address.clear();
  world.engine->joined(info);
  world.join("node-1");
  const JobId id = world.submit(over(2));
  CHECK(world.started("node-0", id, 1).master_addr == "10.0.0.100");
}

TEST_CASE("one machine needs no test and meets on loopback") {
  World world(2);
  for (const char* name : {"node-0", "node-1"}) {
    NodeInfo info = World::info_of(name);
    info.address = "127.0.0.1";
    info.machine = "one";
    world.engine->joined(info);
  }
  const JobId id = world.submit(over(2));
  CHECK(world.started("node-0", id, 1).master_addr == "127.0.0.1");
  CHECK(world.pair_tests.empty());
}

TEST_CASE("a shard on another machine is brought to the head before it counts") {
  Far world(1);
  JobSpec spec = World::spec();
  spec.max_restarts = 1;
  const JobId id = world.submit(spec);
  const wire::AttemptSpec told = world.started("node-0", id, 1);
  CHECK(told.storage_path == "/roots/node-0/jobs/" + id.str() + "/storage");
  world.say("node-0", id, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", id, 1, 0, 1);
  const nlohmann::json line = {
      {"type", "checkpoint"}, {"step", 10}, {"path", "/there/shard"}, {"ack", true}};
  world.say("node-0", id, 1, wire::RankReport{0, line});
  world.until([&] { return world.fetches.size() == 1; });
  World::Fetch fetch = world.fetches[0];
  CHECK(fetch.ask.path == "/there/shard");
  CHECK(fetch.ask.step == 10);
  CHECK_FALSE(world.answer("node-0", id, 1, 3).has_value());
  world.deliver(fetch);
  CHECK(world.taken.empty());  // not before it is safe
  world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
  const nlohmann::json answer = *world.answer("node-0", id, 1, 3);
  CHECK(answer.at("ok") == true);
  CHECK(world.taken == std::vector<std::string>{"fetch-1"});
  CHECK(read_file(fs::path(answer.at("path").get<std::string>()) / "shard-00000-of-00001/model") ==
        "weights");

  // The next attempt: the checkpoint is brought there before it starts.
  world.exit_rank("node-0", id, 1, 0, 1);
  world.finish("node-0", id, 1, Outcome::failed, "rank 0 failed");
  world.until([&] { return world.prepares.size() == 1; });
  world.settle();
  CHECK(world.prepares[0].second.checkpoint == 0);
  CHECK_FALSE(world.was_started(id, 2));
  world.engine->attempt_prepared(NodeId("node-0"), id, 2, std::nullopt);
  CHECK(world.started("node-0", id, 2).checkpoint ==
        "/roots/node-0/jobs/" + id.str() + "/checkpoints/checkpoint_0");
}

TEST_CASE(
    "a shard that does not come is an error to the rank, and a lost node keeps nothing waiting") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  nlohmann::json line = {{"type", "checkpoint"}, {"step", 1}, {"path", "/there"}, {"ack", true}};
  world.say("node-0", id, 1, wire::RankReport{0, line});
  world.until([&] { return world.fetches.size() == 1; });
  world.fetches[0].done(Error(ErrorCode::failed, "a sum is wrong"), {});
  world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
  CHECK(world.answer("node-0", id, 1, 3)->at("error") == "a sum is wrong");

  line["step"] = 2;
  world.say("node-0", id, 1, wire::RankReport{0, line});
  world.until([&] { return world.fetches.size() == 2; });
  world.engine->gone(NodeId("node-0"));
  world.advance(31s);
  REQUIRE(world.given_up.size() == 1);
  world.fetches[1].done(Error(ErrorCode::unreachable, "node-0 is lost"), {});
  world.until([&] { return world.state(id) == "restarting"; });
}

TEST_CASE("a checkpoint for which there is no room waits for it") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  const nlohmann::json line = {
      {"type", "checkpoint"}, {"step", 7}, {"path", "/there"}, {"ack", true}};
  world.say("node-0", id, 1, wire::RankReport{0, line});
  const auto no_room = [&](std::size_t number) {
    world.until([&] { return world.fetches.size() == number; });
    world.fetches.back().done(Error(ErrorCode::exhausted, "no room"), {});
    world.settle();
    CHECK_FALSE(world.answer("node-0", id, 1, 3).has_value());
  };
  const auto room = [&](std::size_t number) {
    world.until([&] { return world.fetches.size() == number; });
    const World::Fetch fetch = world.fetches.back();
    CHECK(fetch.ask.path == "/there");
    world.deliver(fetch);
  };
  no_room(1);
  world.advance(4s);
  world.settle();
  CHECK(world.fetches.size() == 1);
  world.advance(1s);
  no_room(2);
  const std::vector<std::string> messages = world.messages(id);
  CHECK(std::count(messages.begin(), messages.end(),
                   "the checkpoint of step 7 waits for room: no room") == 1);
  CHECK(world.engine->job(id).at("reason") == "the checkpoint of step 7 waits for room: no room");

  SUBCASE("its rank has the answer then") {
    world.advance(9s);
    world.settle();
    CHECK(world.fetches.size() == 2);
    world.advance(1s);
    room(3);
    world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
    CHECK(world.answer("node-0", id, 1, 3)->at("ok") == true);
  }
  SUBCASE("and the end of a job that went well waits for it") {
    world.exit_rank("node-0", id, 1, 0, 0);
    world.finish("node-0", id, 1, Outcome::succeeded);
    world.settle();
    CHECK(world.state(id) == "running");
    SUBCASE("until there is some") {
      world.advance(10s);
      room(3);
      world.until([&] { return world.state(id) == "succeeded"; });
      CHECK(world.engine->job(id).at("checkpoints").size() == 1);
    }
    SUBCASE("or its node is lost") {
      world.engine->gone(NodeId("node-0"));
      world.advance(31s);
      world.until([&] { return world.state(id) == "succeeded"; });
      CHECK(world.fetches.size() == 2);
      CHECK(world.engine->job(id).at("checkpoints").empty());
    }
    SUBCASE("or somebody stops it") {
      world.engine->stop(id, {}, [](const auto&) {});
      world.until([&] { return world.state(id) == "stopped"; });
      CHECK(world.engine->job(id).at("checkpoints").empty());
    }
    SUBCASE("also of a head that is started anew") {
      const std::uint64_t last = world.seqs[{"node-0", id.str(), 1}];
      world.restart();
      world.join("node-0", {{id, 1}});
      world.repeat("node-0", id, 1, 3, wire::RankReport{0, line});
      world.repeat("node-0", id, 1, last - 1, wire::RankExited{});
      world.repeat("node-0", id, 1, last, wire::NodeFinished{});
      room(3);
      world.until([&] { return world.state(id) == "succeeded"; });
      CHECK(world.engine->job(id).at("checkpoints").size() == 1);
    }
  }
  SUBCASE("one that failed does not") {
    world.exit_rank("node-0", id, 1, 0, 1);
    world.finish("node-0", id, 1, Outcome::failed, "rank 0 failed");
    world.until([&] { return world.state(id) == "failed"; });
  }
}

TEST_CASE("a checkpoint that waits for room does not come behind a later one") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  const auto report = [&](int step) {
    world.say("node-0", id, 1,
              wire::RankReport{
                  0, {{"type", "checkpoint"}, {"step", step}, {"path", "/there"}, {"ack", true}}});
  };
  report(100);
  world.until([&] { return world.fetches.size() == 1; });
  world.fetches.back().done(Error(ErrorCode::exhausted, "no room"), {});
  world.settle();
  report(200);
  world.until([&] { return world.fetches.size() == 2; });
  const World::Fetch fetch = world.fetches.back();
  world.deliver(fetch);
  world.until([&] { return world.answer("node-0", id, 1, 4).has_value(); });
  CHECK(world.answer("node-0", id, 1, 3)->at("error") ==
        "that of step 200 came before there was room");
  world.advance(60s);
  world.settle();
  CHECK(world.fetches.size() == 2);
  CHECK(world.engine->job(id).at("checkpoints").size() == 1);
}

TEST_CASE("a node whose ranks have ended is in use until its checkpoint is here") {
  Far world(1);
  const NodeId node("node-0");
  const JobId id = world.submit(World::spec());
  world.begin(id);
  const nlohmann::json line = {{"type", "checkpoint"}, {"step", 1}, {"path", "/there"}};
  world.say("node-0", id, 1, wire::RankReport{0, line});
  world.exit_rank("node-0", id, 1, 0, 0);
  world.finish("node-0", id, 1, Outcome::succeeded);
  world.until([&] { return world.fetches.size() == 1; });
  world.settle();
  CHECK(world.engine->nodes_in_use().at(node) == "a checkpoint of " + id.str() + " is fetched");
  CHECK(world.engine->drain(node, false).at("state") == "draining");
  CHECK_THROWS_AS(world.engine->remove_node(node, false, {}), Error);
  const World::Fetch fetch = world.fetches[0];
  world.deliver(fetch);
  world.until([&] { return world.state(id) == "succeeded"; });
  CHECK(world.engine->nodes_in_use().empty());
  CHECK(state_of(world, "node-0") == "drained");
}

TEST_CASE("of a head that is started anew a node is in use until all of its checkpoints are here") {
  Far world(1);
  const NodeId node("node-0");
  const JobId id = world.submit(World::spec());
  world.begin(id);
  const auto report = [](int step) {
    return wire::RankReport{0, {{"type", "checkpoint"}, {"step", step}, {"path", "/there"}}};
  };
  world.say("node-0", id, 1, report(1));
  world.say("node-0", id, 1, report(2));
  const std::uint64_t second = world.seqs[{"node-0", id.str(), 1}];
  world.exit_rank("node-0", id, 1, 0, 0);
  world.finish("node-0", id, 1, Outcome::succeeded);
  const std::uint64_t last = world.seqs[{"node-0", id.str(), 1}];
  const auto bring = [&](const World::Fetch& fetch) { world.deliver(fetch); };
  world.until([&] { return world.fetches.size() == 2; });
  bring(world.fetches[0]);
  world.until([&] { return world.engine->job(id).at("checkpoints").size() == 1; });
  world.settle();
  world.restart();
  world.settle();
  // Nothing was heard of it yet.
  CHECK(world.engine->nodes_in_use().contains(node));
  world.join("node-0", {{id, 1}});
  CHECK(world.engine->nodes_in_use().contains(node));
  world.repeat("node-0", id, 1, second, report(2));
  wire::RankExited exited;
  world.repeat("node-0", id, 1, last - 1, exited);
  wire::NodeFinished finished;
  finished.outcome = Outcome::succeeded;
  world.repeat("node-0", id, 1, last, finished);
  world.until([&] { return world.fetches.size() == 3; });
  CHECK(world.engine->nodes_in_use().contains(node));
  bring(world.fetches[2]);
  world.until([&] { return world.state(id) == "succeeded"; });
  CHECK(world.engine->job(id).at("checkpoints").size() == 2);
  CHECK(world.engine->nodes_in_use().empty());
}

TEST_CASE("a storage that all nodes must see is looked at from each") {
  Far world(1);
  JobSpec spec = World::spec();
  spec.storage_path = (world.folder / "shared").string();
  const JobId id = world.submit(spec);
  world.until([&] { return world.prepares.size() == 1; });
  const wire::PrepareAttempt asked = world.prepares[0].second;
  CHECK(asked.token.size() == 32);
  CHECK(read_file(asked.token_file) == asked.token);
  CHECK_FALSE(asked.checkpoint.has_value());
  world.engine->attempt_prepared(NodeId("node-0"), id, 1,
                                 Error(ErrorCode::invalid, "it is another folder"));
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.starts.empty());
  CHECK(world.engine->job(id).at("reason").get<std::string>().find("another folder") !=
        std::string::npos);
}

TEST_CASE("a node that comes back before its start is asked again") {
  Far world(1);
  JobSpec spec = World::spec();
  spec.storage_path = (world.folder / "shared").string();
  const JobId id = world.submit(spec);
  world.until([&] { return world.prepares.size() == 1; });
  world.engine->gone(NodeId("node-0"));
  world.engine->attempt_prepared(NodeId("node-0"), id, 1, std::nullopt);  // of before
  CHECK(world.starts.empty());
  world.join("node-0");
  REQUIRE(world.prepares.size() == 2);
  world.engine->attempt_prepared(NodeId("node-0"), id, 1, std::nullopt);
  world.started("node-0", id, 1);
}

TEST_CASE("where the logs of a rank are") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.started("node-0", id, 1);
  const auto far = world.engine->logs(id, 1);
  REQUIRE(far.size() == 1);
  CHECK(far[0].copied);
  CHECK(far[0].folder == world.options.root.mirror(id, 1, NodeId("node-0")));
  CHECK(world.engine->knows_share(NodeId("node-0"), id, 1));
  CHECK_FALSE(world.engine->knows_share(NodeId("node-1"), id, 1));
  CHECK_FALSE(world.engine->knows_share(NodeId("node-0"), id, 2));
  CHECK_FALSE(world.engine->knows_share(NodeId("node-0"), JobId("x-aaaaaa"), 1));
  world.options.machine = "machine-node-0";
  world.restart();
  const auto near = world.engine->logs(id, 1);
  CHECK_FALSE(near[0].copied);
  CHECK(near[0].folder == "/roots/node-0/jobs/" + id.str() + "/attempt-1/ranks");
}

TEST_CASE("a drained node gets nothing new, keeps what runs, and can be taken back") {
  Far world(2);
  const JobId first = world.submit(World::spec());
  world.started("node-0", first, 1);
  world.say("node-0", first, 1, wire::MasterReady{29500});
  world.start_ranks("node-0", first, 1, 0, 1);
  CHECK(world.engine->drain(NodeId("node-0"), false).at("state") == "draining");
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
  CHECK(state_of(world, "node-0") == "drained");
  CHECK(world.engine->drain(NodeId("node-0"), true).at("state") == "ready");
  CHECK_THROWS_AS(world.engine->drain(NodeId("node-9"), false), Error);
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

TEST_CASE("ranks that were stopped on one node, and not by the head, end the attempt") {
  Far world(2);
  const JobId id = world.submit(over(2));
  for (const int node : {0, 1}) {
    const std::string name = "node-" + std::to_string(node);
    world.started(name, id, 1);
    if (node == 0) world.say(name, id, 1, wire::MasterReady{29500});
    world.start_ranks(name, id, 1, node, 1);
  }
  world.finish("node-1", id, 1, Outcome::stopped, "its supervisor was told to end");
  CHECK(world.stops("node-0", id, 1) == 1);
  world.finish("node-0", id, 1, Outcome::stopped, "");
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.engine->job(id).at("reason") == "its supervisor was told to end");
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
  CHECK_THROWS_AS(world.engine->drain(node, true), Error);
  bool left = false;
  world.engine->leaving(node, "its container ended", true, [&] { left = true; });
  CHECK_FALSE(left);  // it is not on the disk yet
  CHECK(world.given_up == std::vector<NodeId>{node});
  const auto expected = [&] { return world.engine->status().at("cluster").at("expected_nodes"); };
  const auto remove = [&] {
    nlohmann::json answer;
    world.engine->remove_node(node, false, [&](nlohmann::json a) { answer = a; });
    world.revoking(std::nullopt);
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
    CHECK(world.engine->drain(node, false).at("state") == "gone");
    CHECK_THROWS_AS(world.engine->drain(node, true), Error);
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

TEST_CASE("an attempt that begins while a node of it leaves does not start") {
  Far world(2);
  const JobId id = world.submit(over(2));
  world.shut_door();
  world.until([&] { return world.waiting_at_door("starting"); });
  world.engine->leaving(NodeId("node-1"), "told to", false);
  world.engine->leaving(NodeId("node-1"), "told to", true);
  world.open_door();
  // It begins anew when there is another.
  world.until([&] { return world.state(id) == "restarting"; });
  CHECK(world.starts.empty());
  CHECK(world.engine->job(id).at("attempts").at(0).at("reason") ==
        "node-1 leaves the cluster: told to");
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

TEST_CASE("an attempt that begins while a node of it is removed does not start") {
  Far world(2);
  const JobId id = world.submit(over(2));
  world.shut_door();
  world.until([&] { return world.waiting_at_door("starting"); });
  world.engine->remove_node(NodeId("node-1"), true, [](const nlohmann::json&) {});
  world.revoking(std::nullopt);
  world.open_door();
  world.until([&] { return world.state(id) == "restarting"; });
  CHECK(world.starts.empty());
  CHECK(world.engine->job(id).at("attempts").at(0).at("reason") ==
        "node-1 was removed from the cluster");
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

TEST_CASE("a node that comes later is used") {
  Far world(1);
  const JobId id = world.submit(over(2));
  world.settle();
  CHECK(world.starts.empty());
  CHECK(world.engine->job(id).at("reason").get<std::string>().size() > 0);
  world.engine->expect_nodes(2);
  world.join("node-1");
  world.started("node-0", id, 1);
}

TEST_CASE("a node that is not prepared yet gets nothing; one that is prepared anew goes on") {
  Far world(1);
  NodeInfo info = joined_by_itself();
  info.preparing = "is being prepared";
  world.engine->joined(info);
  CHECK(state_of(world, "joined-1") == "joining");
  const JobId id = world.submit(over(2));
  world.settle();
  CHECK_FALSE(world.was_started(id, 1));
  world.engine->preparing(info.node, "cannot be prepared: setup", true);
  const auto reason = [&] { return row_of(world, "joined-1").at("reason").get<std::string>(); };
  CHECK(reason() == "cannot be prepared: setup");
  CHECK_FALSE(world.was_started(id, 1));
  world.engine->preparing(info.node, "", false);
  CHECK(state_of(world, "joined-1") == "ready");
  world.started("joined-1", id, 1);
  world.engine->preparing(info.node, "is being prepared: files", false);
  CHECK(state_of(world, "joined-1") == "ready");
  CHECK(reason() == "is being prepared: files");
  world.engine->preparing(NodeId("joined-9"), "nobody's", true);
}

TEST_CASE("nodes that join by themselves count beside those that are to be there") {
  Far world(2);
  world.options.expected_nodes = 2;
  NodeInfo info = joined_by_itself();
  info.type = "gpu";
  world.engine->joined(info);
  const auto row = [&] { return row_of(world, "joined-1"); };
  CHECK(row().at("joined") == true);
  CHECK(row().at("type") == "gpu");
  world.settle();
  world.restart();  // before it is back
  CHECK(row().at("state") == "joining");
  CHECK(row().at("joined") == true);
  CHECK(row().at("type") == "gpu");
  CHECK(world.engine->status().at("cluster").at("expected_nodes") == 2);
  world.engine->joined(info);
  nlohmann::json answer;
  world.engine->remove_node(NodeId("joined-1"), false, [&](nlohmann::json a) { answer = a; });
  world.revoking(std::nullopt);
  CHECK(answer.at("state") == "gone");
  CHECK(world.engine->status().at("cluster").at("expected_nodes") == 2);
  CHECK(world.engine->has_seen(NodeId("joined-1")));
  CHECK_FALSE(world.engine->has_seen(NodeId("joined-2")));
}

TEST_CASE("a job waits for machines that are asked for, and nobody else takes its nodes") {
  World world(0);
  MachinesToCome machines;
  machines.types.resize(1);
  machines.types[0].name = "gpu";
  machines.types[0].each = any_machine();
  machines.types[0].most = 2;
  machines.most = 2;
  CHECK_THROWS_AS(world.engine->check_fits(over(2)), Error);
  world.engine->expect_machines(machines);
  CHECK_NOTHROW(world.engine->check_fits(over(2)));
  CHECK_THROWS_AS(world.engine->check_fits(over(3)), Error);
  CHECK(world.engine->plan(over(2)).at("reason") == "asks for 2 machines of type gpu");
  CHECK(world.needs == 0);

  const auto reason = [&](const JobId& id) {
    return world.engine->job(id).at("reason").get<std::string>();
  };
  JobSpec whole = over(2);
  whole.resources.cpu = 4;
  whole.resources_given = true;
  const JobId large = world.submit(whole);
  world.settle();
  CHECK(reason(large) == "asks for 2 machines of type gpu");
  CHECK(world.needs == 1);
  machines.types[0].there = 2;
  machines.nodes = 2;
  machines.coming = {{NodeId("node-1"), "gpu", false, "waits: Priority"},
                     {NodeId("node-2"), "gpu", false, "waits: Priority"}};
  CHECK(world.engine->expect_machines(machines).gangs.empty());
  CHECK(reason(large) == "2 of 2 gpu are coming");

  const JobId small = world.submit(World::spec());
  world.settle();
  CHECK(reason(small) == "waits until others have ended: there may be 2 machines");
  for (ComingMachine& each : machines.coming) each.runs = true;
  world.engine->expect_machines(machines);
  world.join("node-1");
  world.settle();
  CHECK(world.state(small) == "queued");
  CHECK(world.starts.empty());
  world.join("node-2");
  world.started("node-1", large, 1);
  world.settle();
  CHECK(world.needs > 1);
  CHECK(world.state(small) == "queued");
}

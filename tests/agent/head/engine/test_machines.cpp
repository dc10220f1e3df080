#include <doctest/doctest.h>

#include "agent/head/store/checkpoints.hpp"
#include "launcher/core/error.hpp"
#include "tests/agent/head/engine/far.hpp"

// Clusters whose nodes are machines of their own, the head's among them or not.

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing;
using Outcome = wire::NodeFinished::Outcome;
using namespace std::chrono_literals;

namespace {

NodeInfo joined_by_itself() {
  NodeInfo info;
  info.node = NodeId("joined-1");
  info.machine = "machine-joined";
  info.cpus = 4;
  info.joined = true;
  return info;
}

// Rank 0 reports a checkpoint of each step, and waits for neither answer. Returns their fetches.
std::vector<World::Fetch> report_two(Far& world, const JobId& id, int first, int second) {
  for (const int step : {first, second}) {
    world.say("node-0", id, 1,
              wire::RankReport{
                  0, {{"type", "checkpoint"}, {"step", step}, {"path", "/there"}, {"ack", true}}});
  }
  world.until([&] { return world.fetches.size() == 2; });
  return world.fetches;
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

TEST_CASE("a checkpoint whose files are here after a later one's does not come behind it") {
  Far world(1);
  JobSpec spec = World::spec();
  int first = 100;
  int second = 200;
  bool is_committed = true;
  SUBCASE("all are kept") {}
  SUBCASE("which is being committed") {
    is_committed = false;
  }
  SUBCASE("the newest is kept") {
    spec.checkpoint.num_to_keep = 1;
  }
  SUBCASE("of a program that went back") {
    std::swap(first, second);
  }
  const JobId id = world.submit(spec);
  world.begin(id);
  const std::vector<World::Fetch> fetches = report_two(world, id, first, second);
  const World::Fetch& earlier = fetches[0];
  const World::Fetch& later = fetches[1];
  REQUIRE(earlier.ask.step == first);
  world.deliver(later);
  if (is_committed) {
    world.until([&] { return world.engine->job(id).at("checkpoints").size() == 1; });
  }
  world.deliver(earlier);
  world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
  world.settle();
  CHECK(world.answer("node-0", id, 1, 4)->at("ok") == true);
  CHECK(world.answer("node-0", id, 1, 3)->at("error") ==
        "that of step " + std::to_string(second) +
            ", which was reported after it, was here before it");
  const nlohmann::json checkpoints = world.engine->job(id).at("checkpoints");
  REQUIRE(checkpoints.size() == 1);
  CHECK(checkpoints[0].at("step") == second);
}

TEST_CASE("a checkpoint is not given up for a later one that cannot be committed") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  const std::vector<World::Fetch> fetches = report_two(world, id, 100, 200);
  const fs::path later = temporary_folder(world.options.root.storage(id), 1, 200);
  make_folders(later);
  std::ofstream(later / "nobody's");
  world.deliver(fetches[1]);
  world.deliver(fetches[0]);
  world.until([&] { return world.answer("node-0", id, 1, 3).has_value(); });
  world.until([&] { return world.answer("node-0", id, 1, 4).has_value(); });
  CHECK(world.answer("node-0", id, 1, 4)->contains("error"));
  CHECK(world.answer("node-0", id, 1, 3)->at("ok") == true);
  const nlohmann::json checkpoints = world.engine->job(id).at("checkpoints");
  REQUIRE(checkpoints.size() == 1);
  CHECK(checkpoints[0].at("step") == 100);
}

TEST_CASE("checkpoints that are here in the order of their reports are all committed") {
  Far world(1);
  const JobId id = world.submit(World::spec());
  world.begin(id);
  const std::vector<World::Fetch> fetches = report_two(world, id, 200, 100);
  for (const World::Fetch& each : fetches) world.deliver(each);
  world.until([&] { return world.answer("node-0", id, 1, 4).has_value(); });
  const nlohmann::json checkpoints = world.engine->job(id).at("checkpoints");
  REQUIRE(checkpoints.size() == 2);
  CHECK(checkpoints[1].at("step") == 100);
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
  CHECK(world.drain(node.str()).at("state") == "draining");
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

TEST_CASE(
    "however many nodes fail, each is told once to stop, and one that was away when it is back") {
  Far world(4);
  const JobId id = world.submit(over(4));
  for (const int node : {0, 1, 2, 3}) {
    const std::string name = "node-" + std::to_string(node);
    world.started(name, id, 1);
    if (node == 0) world.say(name, id, 1, wire::MasterReady{29500});
    world.start_ranks(name, id, 1, node, 1);
  }
  world.settle();
  for (const int node : {0, 1, 2}) {
    const std::string name = "node-" + std::to_string(node);
    world.exit_rank(name, id, 1, node, 7);
    if (node != 2) world.finish(name, id, 1, Outcome::failed, "exit code 7");
  }
  CHECK(world.stops("node-0", id, 1) == 0);  // it ends its own
  for (const char* name : {"node-1", "node-2", "node-3"}) CHECK(world.stops(name, id, 1) == 1);
  world.engine->gone(NodeId("node-3"));
  world.join("node-3", {{id, 1}});
  CHECK(world.stops("node-3", id, 1) == 2);
  CHECK(world.stops("node-2", id, 1) == 1);
  world.finish("node-2", id, 1, Outcome::failed, "exit code 7");
  world.exit_rank("node-3", id, 1, 3, 143, true);
  world.finish("node-3", id, 1, Outcome::stopped, "another rank failed");
  world.until([&] { return world.state(id) == "failed"; });
  CHECK(world.engine->job(id).at("exit_code") == 7);
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
  CHECK_FALSE(world.engine->is_prepared(info.node));
  world.engine->preparing(info.node, "", false);
  CHECK(world.engine->is_prepared(info.node));
  CHECK(state_of(world, "joined-1") == "ready");
  world.started("joined-1", id, 1);
  world.engine->preparing(info.node, "is being prepared: files", false);
  CHECK(state_of(world, "joined-1") == "ready");
  CHECK(reason() == "is being prepared: files");
  CHECK(world.engine->is_prepared(info.node));
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
  world.until([&] { return !answer.is_null(); });
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

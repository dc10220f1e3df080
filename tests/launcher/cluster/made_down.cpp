#include "tests/launcher/cluster/made.hpp"

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/machines.hpp"

using namespace dtrain;
using namespace dtrain::testing;

TEST_CASE("a list that misses machines takes none of them from the cluster, nor out of a down") {
  House house;
  REQUIRE(house.up_now().complete);
  for (const std::set<std::string>& late :
       {std::set<std::string>{"i-2"}, std::set<std::string>{"i-1"},
        std::set<std::string>{"i-1", "i-2"}}) {
    house.cloud->late = late;
    const UpReport report = house.up_now();
    CHECK(names(report) == "node-0 i-1, node-1 i-2");
    CHECK(report.removed == Lines{});
  }
  CHECK(house.cloud->asked == 2);

  // Who has no notes sees that there is more than the list says, and leaves it.
  house.cloud->late = {"i-2"};
  {
    const testing::VariableIs other("XDG_STATE_HOME", (house.home.path() / "other").string());
    UpOptions how = house.options();
    how.dry_run = true;
    const UpReport plan = up(house.spec, how);
    CHECK(plan.plan.nodes.front().reason == "in the cluster");
    CHECK(plan.removed == Lines{});
    REQUIRE(!plan.warnings.empty());
    CHECK(plan.warnings.front().find("node-1 is in the cluster") == 0);
    CHECK(!load_cluster("c"));
  }
  CHECK(house.down_now().complete);
  CHECK(house.cloud->count(MachineState::gone) == 2);
}

TEST_CASE("a down without notes gives back what its first list has missed") {
  House house;
  house.workers(2);
  REQUIRE(house.up_now().complete);
  // Another laptop, to which the cloud shows one machine only once the others are going.
  const testing::VariableIs other("XDG_STATE_HOME", (house.home.path() / "other").string());
  save_cluster(remembered(house.spec, ClusterId()));
  house.cloud->late = {"i-3"};
  house.cloud->on_step = [&] { house.cloud->late.clear(); };
  const DownReport report = house.down_now();
  CHECK(house.cloud->count(MachineState::gone) == 3);
  CHECK(not_gone(report) == Lines{});
  CHECK(report.complete);
}

TEST_CASE("a survey before a down: checkpoints that cannot be counted are not taken for none") {
  House house;
  REQUIRE(house.up_now().complete);
  const auto survey_with = [&](const fs::path& agent) {
    DownOptions how;
    how.agent = agent;
    how.provider = house.options().provider;
    return survey_down("c", how);
  };
  CHECK(survey_with(DTRAIN_AGENT_BINARY).checkpoints_unknown.empty());

  // Nobody who could count them.
  const DownSurvey uncounted = survey_with(house.home.path() / "none");
  CHECK(uncounted.head_answers);
  CHECK_FALSE(uncounted.checkpoints_unknown.empty());

  // A folder that cannot be listed, not even by root.
  const paths::HeadRoot head{load_cluster("c").value().head_root};
  const fs::path folder = head.storage() / "a-aaaaaa/checkpoints";
  make_folders(folder.parent_path());
  fs::create_symlink("checkpoints", folder);
  const DownSurvey unlisted = survey_with(DTRAIN_AGENT_BINARY);
  CHECK(unlisted.head_answers);
  CHECK(unlisted.checkpoints_unknown.find("a-aaaaaa/checkpoints: ") != std::string::npos);
  // Whoever does not ask takes it down all the same.
  CHECK(house.down_now().complete);
}

TEST_CASE("a down that is stopped says what is there still, and the next goes on from there") {
  House house;
  REQUIRE(house.up_now().complete);
  std::stop_source stop;
  SUBCASE("before machines were given back") {
    stop.request_stop();
    const DownReport report = house.down_now(stop.get_token());
    CHECK(!report.complete);
    CHECK(not_gone(report) ==
          Lines{"node-0 machine running i-1: stopped before it was given back",
                "node-1 machine running i-2: stopped before it was given back"});
    CHECK(house.cloud->count(MachineState::running) == 2);
  }
  SUBCASE("while a slow provider takes them back") {
    house.cloud->steps_stopping = 1000000;
    house.cloud->on_step = [&] { stop.request_stop(); };
    const DownReport report = house.down_now(stop.get_token());
    CHECK(!report.complete);
    CHECK(not_gone(report) == Lines{"node-0 machine stopping i-1: it is being given back",
                                    "node-1 machine stopping i-2: it is being given back"});
  }
  REQUIRE(load_cluster("c"));
  house.cloud->on_step = nullptr;
  for (FakeCloud::Instance& each : house.cloud->instances) each.left = 1;
  house.cloud->steps_stopping = 1;
  CHECK(house.down_now().complete);
  CHECK(!load_cluster("c"));
}

TEST_CASE("what a head asks for while it goes is given back by the same down") {
  House house;
  REQUIRE(house.up_now().complete);
  const auto ask_for = [&](const std::string& node) {
    FakeCloud::Instance one = house.cloud->instances.back();
    one.id = "of the head " + node;
    one.tags["dtrain-node"] = node;
    one.state = MachineState::running;
    one.left = 0;
    house.cloud->joined.insert(node);
    house.cloud->instances.push_back(one);
  };
  ask_for("gpu-1");
  house.cloud->on_step = [&, more = 2]() mutable {
    if (more > 0) ask_for("gpu-" + std::to_string(4 - more--));
  };
  const DownReport report = house.down_now();
  CHECK(report.complete);
  CHECK(not_gone(report) == Lines{});
  CHECK(house.cloud->count(MachineState::gone) == 5);
  CHECK(!load_cluster("c"));
}

TEST_CASE("a down of the workers alone ends, though their head asks for more all the while") {
  House house;
  REQUIRE(house.up_now().complete);
  house.cloud->on_step = [&, number = 0]() mutable {
    FakeCloud::Instance one = house.cloud->instances.back();
    one.id = "of the head " + std::to_string(++number);
    one.tags["dtrain-node"] = "gpu-" + std::to_string(number);
    one.state = MachineState::running;
    one.left = 0;
    house.cloud->joined.insert(one.tags["dtrain-node"]);
    house.cloud->instances.push_back(one);
  };
  const DownReport report = house.down_now({}, true);
  CHECK_FALSE(report.complete);
  const bool is_said = std::any_of(report.rows.begin(), report.rows.end(), [](const DownRow& row) {
    return row.note == "the head asks for more all the while";
  });
  CHECK(is_said);
  house.cloud->on_step = nullptr;
  CHECK(house.down_now().complete);
}

TEST_CASE("a down of the workers alone takes from what the head was told only what it asks for") {
  House house;
  REQUIRE(house.up_now().complete);
  wire::WantedMachines told = house.wanted_machines();
  told.head = {{"--time=60"}, "#!/bin/sh\n"};
  const auto head = [&](const nlohmann::json& wanted) {
    const HeadDoor door = HeadDoor::open(load_cluster("c").value(), *house.options().provider);
    const wire::ApiClient client(door.socket(), "c");
    if (!wanted.is_null()) client.post("/v1/machines", wanted);
    return client.get("/v1/status");
  };
  head(wire::to_json(told));
  const DownReport report = house.down_now({}, true);
  CHECK(not_gone(report) == Lines{});
  const nlohmann::json status = head(nullptr);
  told.types.clear();
  CHECK(wire::wanted_machines_from_json(status["machines"]["wanted"]) == told);
  CHECK(status["cluster"]["down_when_idle"]["after_ms"] == 2 * 3600 * 1000);
  CHECK(house.down_now().complete);
}

TEST_CASE("Ctrl-C ends the wait for another up or down") {
  House house;
  const ClusterLock other = ClusterLock::take("c", nullptr);
  std::stop_source stop;
  const auto press = [&](const std::string&) { stop.request_stop(); };
  UpOptions how = house.options();
  how.say = press;
  how.access.stop = stop.get_token();
  CHECK_THROWS_WITH_AS(up(house.spec, how), "stopped, while another up or down of c is at work",
                       Error);
  stop = {};
  DownOptions end;
  end.say = press;
  end.access.stop = stop.get_token();
  CHECK_THROWS_WITH_AS(down("c", end), "stopped, while another up or down of c is at work", Error);
  CHECK(house.cloud->asked == 0);
}

TEST_CASE("of two clusters of one name none is taken over, and down gives both back") {
  House house;
  for (const char* other : {"c-x", "c-y"}) {
    Request head;
    head.type = "head";
    head.head = true;
    head.nodes = {NodeId("node-0")};
    head.cluster = ClusterId(other);
    house.options().provider->create({head}, [](const MachineOutcome&) {});
    house.cloud->step();
  }
  house.cloud->step();
  CHECK_THROWS_AS(adopt(house.spec, *house.options().provider, DTRAIN_AGENT_BINARY), Error);
  CHECK(!load_cluster("c"));
  const auto adopted = adopt(house.spec, *house.options().provider, DTRAIN_AGENT_BINARY, true);
  REQUIRE(adopted);
  CHECK(adopted->id.str() == "c-x");
  CHECK(house.down_now().complete);
  CHECK(house.cloud->count(MachineState::gone) == 2);
}

TEST_CASE("machines that cannot be reached are found again, and given back") {
  House house;
  house.cloud->transport = nullptr;
  const UpReport report = house.up_now();
  CHECK(!report.complete);
  CHECK(house.cloud->count(MachineState::running) == 2);
  CHECK(!house.up_now().complete);
  CHECK(house.cloud->asked == 2);
  fs::remove_all(paths::cluster_state("c"));
  const auto adopted = adopt(house.spec, *house.options().provider, DTRAIN_AGENT_BINARY);
  REQUIRE(adopted);
  CHECK(adopted->id.str() == house.cloud->instance("i-1").tags.at("dtrain-cluster-id"));
  CHECK(house.down_now().complete);
  CHECK(house.cloud->count(MachineState::gone) == 2);
  CHECK(!fs::exists(paths::cluster_state("c")));
}

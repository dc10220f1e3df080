#include "agent/head/machines/keeper.hpp"

#include "tests/agent/head/machines/desk.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing_desk;

namespace {

// One of type gpu, which a job has had, was idle, and is stopped since.
void cache_one(Desk& desk, int most = 1) {
  wire::WantedMachines what = on_demand(most);
  what.cache_stopped_nodes = true;
  desk.want(what);
  desk.needs({}, {JobId("a"), "gpu", 1});
  desk.growth.needed = {NodeId("gpu-1")};
  desk.site.set("1", MachineState::running);
  desk.tick();
  desk.come("gpu-1");
  desk.needs({});
  desk.clock.advance(2min);
  desk.look();
}

}  // namespace

TEST_CASE(
    "machines: idle ones are stopped where the YAML says so, and started before any is made") {
  Desk desk;
  cache_one(desk);
  CHECK(desk.machines() == "gpu-1 stopped");
  CHECK(desk.removed.at(NodeId("gpu-1")) == "its machine is stopped: no job needs it");
  desk.look();
  CHECK(desk.machines() == "gpu-1 stopped");
  CHECK(desk.keeper->view()["machines"][0]["reason"] == "started again when jobs need one");
  for (int round = 0; round < 2; ++round) {
    desk.needs({}, {JobId("b"), "gpu", 1});
    CHECK(desk.machines() == "gpu-1 pending");
    CHECK(desk.site.jobs == 1);
    CHECK(desk.site.boots.back() == "#!/bin/sh\nset -- --contained\nscript of gpu-1");
    desk.growth.needed = {NodeId("gpu-1")};
    desk.site.set("1", MachineState::running);
    desk.begun.clear();
    desk.tick();
    CHECK(desk.begun.contains(NodeId("gpu-1")));
    desk.come("gpu-1");
    CHECK(desk.machines() == "gpu-1 running");
    desk.needs({});
    desk.clock.advance(2min);
    desk.look();
    CHECK(desk.machines() == "gpu-1 stopped");
  }
  SUBCASE("what is kept no more is given back") {
    desk.want(on_demand(1));
    desk.look();
    CHECK(desk.machines() == "");
  }
  SUBCASE("a head that is started anew knows them") {
    desk.again();
    desk.look();
    CHECK(desk.machines() == "gpu-1 stopped");
    desk.needs({}, {JobId("b"), "gpu", 1});
    CHECK(desk.machines() == "gpu-1 pending");
    CHECK(desk.site.jobs == 1);
  }
  SUBCASE("a start that was under way when the head ended is begun anew") {
    desk.credentials.insert(NodeId("gpu-1"));
    desk.nodes[NodeId("gpu-1")] = Presence::unseen;
    desk.again();
    desk.look();
    CHECK(desk.removed.at(NodeId("gpu-1")) == "its machine was stopped");
    CHECK(desk.credentials.empty());
    CHECK(desk.machines() == "gpu-1 stopped");
  }
}

TEST_CASE(
    "machines: what cannot be stopped is given back, and what cannot be started is made anew") {
  Desk desk;
  desk.site.no_stop = Error(ErrorCode::failed, "its root is no volume");
  cache_one(desk, 2);
  CHECK(desk.machines() == "gpu-1 running");
  desk.look();
  desk.look();
  CHECK(desk.machines() == "");

  Desk other;
  cache_one(other, 2);
  other.site.no_start = Error(ErrorCode::exhausted, "no room");
  other.needs({}, {JobId("b"), "gpu", 1});
  CHECK(other.machines() == "gpu-1 stopped");
  CHECK(other.removed.at(NodeId("gpu-1")) == "its machine cannot be started");
  other.needs({}, {JobId("b"), "gpu", 1});
  CHECK(other.machines() == "gpu-1 stopped, gpu-2 pending");
}

TEST_CASE("machines: one that somebody stops is no node any more") {
  Desk desk;
  desk.have(2);
  desk.site.machines.front().state = MachineState::stopped;
  desk.busy = {NodeId("gpu-1")};
  desk.look();
  CHECK(desk.removed.at(NodeId("gpu-1")) == "its machine was stopped");
  CHECK(desk.words.at(NodeId("gpu-1")) == "its machine was stopped");
  // It is what there is to take its place.
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 running");
  CHECK(desk.site.jobs == 1);
}

TEST_CASE("machines: one of an up that is stopped counts for nothing, and stays") {
  Desk desk;
  desk.have(1);
  Machine made = desk.site.machines.front();
  made.node = NodeId("node-1");
  made.id = "9";
  made.joins = false;
  made.state = MachineState::stopped;
  desk.site.machines.push_back(made);
  desk.due.reset();
  desk.look();
  CHECK(desk.machines() == "gpu-1 running, node-1 stopped");
  CHECK_FALSE(desk.due.has_value());
}

TEST_CASE("machines: of those that are stopped so many stay as there may be") {
  const auto stopped = [](const char* id, const char* launch = "one", const char* type = "gpu") {
    Machine machine;
    machine.joins = true;
    machine.id = id;
    machine.node = NodeId(std::string(type) + "-" + id);
    machine.type = type;
    machine.launch = launch;
    machine.state = MachineState::stopped;
    machine.created = std::chrono::system_clock::time_point(std::chrono::seconds(std::stoi(id)));
    return machine;
  };
  wire::WantedMachines what = on_demand(3);
  what.cache_stopped_nodes = true;
  const std::vector<Machine> there{stopped("1"), stopped("2"), stopped("3", "two"),
                                   stopped("4", "one", "cpu")};
  const auto gone = [&](const std::map<std::string, int>& others) {
    Strings rows;
    for (const auto& each : surplus_stopped(what, others, there)) {
      rows.push_back(each.machines.front().id + ": " + each.reason);
    }
    return rows;
  };
  const std::string no_more = ": it is stopped, and there may be no more machines";
  const std::string no_type = "4: none of type cpu is wanted";
  CHECK(gone({}) == Strings{no_type});
  CHECK(gone({{"gpu", 1}}) == Strings{no_type, "3" + no_more});  // which no job could have
  what.max_workers = 1;
  CHECK(gone({}) == Strings{"1" + no_more, no_type, "3" + no_more});
  what.max_workers = 10;
  what.replace = true;
  CHECK(gone({}) == Strings{no_type, "3: made by another launch configuration"});
  what.cache_stopped_nodes = false;
  CHECK(gone({}).size() == 4);
  // By the configuration that is wanted, the newest first, and none that is on its way there.
  std::vector<Machine> some = there;
  some.push_back(stopped("5"));
  some.back().reason = kStopsNow;
  const auto chosen = to_start(some, what.types.front(), 9);
  REQUIRE(chosen.size() == 2);
  CHECK(chosen.front().id == "2");
  CHECK(to_start(some, what.types.front(), 1).size() == 1);
}

TEST_CASE("machines: what is stopped rather than given back") {
  wire::WantedMachines what = on_demand(3);
  what.cache_stopped_nodes = true;
  Machine idle;
  idle.joins = true;
  idle.id = "1";
  idle.type = "gpu";
  idle.launch = "one";
  const auto stops = [&] { return decide_machines(what, {idle}, {}).release.at(0).stop; };
  CHECK(stops());
  idle.spot = true;
  CHECK_FALSE(stops());
  idle.spot = false;
  idle.launch = "two";
  CHECK_FALSE(stops());
  idle.launch = "one";
  idle.state = MachineState::pending;
  CHECK_FALSE(stops());
  idle.state = MachineState::running;
  what.types.front().max_workers = 0;  // none is wanted
  CHECK_FALSE(stops());
  what = on_demand(3);
  CHECK_FALSE(stops());
}

#include "agent/head/machines/keeper.hpp"

#include "tests/agent/head/machines/desk.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing_desk;

TEST_CASE("machines: asked for, let in when they run, and left alone then") {
  Desk desk;
  desk.want(wanted(2));
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending");
  CHECK(desk.to_come.nodes == 2);
  CHECK(desk.site.boots.front() == "#!/bin/sh\nset -- --contained\nscript of gpu-1");
  CHECK(desk.begun.empty());
  // Ever less often, while nothing changes.
  CHECK(desk.tick() == 1000ms);
  CHECK(desk.tick() == 1500ms);
  for (int i = 0; i < 10; ++i) desk.tick();
  CHECK(desk.tick() == MachineKeeper::kLastLook);
  desk.site.set("1", MachineState::running);
  desk.tick();
  CHECK(desk.begun == std::set<NodeId>{NodeId("gpu-1"), NodeId("gpu-2")});
  desk.come("gpu-1");
  CHECK(desk.to_come.nodes == 1);
  desk.come("gpu-2");
  CHECK(desk.to_come.nodes == 0);
  desk.tick();
  CHECK_FALSE(desk.due.has_value());
  // The same again asks for nothing, and so does a head that is started anew.
  desk.want(wanted(2));
  desk.again();
  desk.look();
  CHECK(desk.site.jobs == 1);
  CHECK(desk.machines() == "gpu-1 running, gpu-2 running");
}

TEST_CASE("machines: another takes the place of one that is gone") {
  Desk desk;
  desk.have(1);
  SUBCASE("its node has left, its machine not yet") {
    desk.goes("gpu-1", Presence::lost);
    CHECK(desk.site.jobs == 2);
    CHECK(desk.removed.empty());
    desk.site.set("1", MachineState::gone, "Slurm job 1 has ended");
    desk.tick();
    CHECK(desk.removed[NodeId("gpu-1")] == "its machine is gone: Slurm job 1 has ended");
    CHECK(desk.words[NodeId("gpu-1")] == "Slurm job 1 has ended");
    CHECK(desk.machines() == "gpu-2 pending");
  }
  SUBCASE("its node says that it leaves") {
    desk.leaving.emplace("gpu-1");
    desk.busy.emplace("gpu-1");
    desk.goes("gpu-1", Presence::here);
    CHECK(desk.machines() == "gpu-1 running, gpu-2 pending");
    desk.look();
    CHECK(desk.removed.empty());
  }
  SUBCASE("its machine is gone, its node is still heard") {
    desk.site.set("1", MachineState::gone, "Slurm job 1 lost a node");
    desk.look();
    CHECK(desk.removed.empty());
    desk.goes("gpu-1", Presence::away);
    CHECK(desk.removed[NodeId("gpu-1")] == "its machine is gone: Slurm job 1 lost a node");
  }
  SUBCASE("nobody knows its machine any more") {
    desk.site.machines.clear();
    desk.goes("gpu-1", Presence::away);
    CHECK(desk.removed[NodeId("gpu-1")] == "its machine is gone");
    CHECK(desk.words.empty());
  }
  CHECK(desk.site.jobs == 2);
  CHECK(desk.error() == "");  // it had come
}

TEST_CASE("machines: what was had together goes when all of it has been lost for long") {
  Desk desk;
  desk.have(1);
  desk.goes("gpu-1", Presence::lost);
  CHECK(desk.machines() == "gpu-1 running, gpu-2 pending");
  const auto begun = desk.clock.now();
  while (desk.clock.now() - begun < 11min) desk.tick();
  CHECK(desk.machines() == "gpu-2 pending");
}

TEST_CASE("machines: nothing is concluded from a provider that does not answer") {
  Desk desk;
  desk.want(wanted(1));
  desk.site.deaf = Error(ErrorCode::timeout, "slurmctld is away");
  desk.tick();
  CHECK(desk.keeper->view()["trouble"]["message"] == "slurmctld is away");
  CHECK(desk.machines() == "gpu-1 pending");
  CHECK(desk.credentials.size() == 1);
  desk.site.deaf.reset();
  desk.tick();
  CHECK(desk.keeper->view()["trouble"].is_null());
  CHECK(desk.site.jobs == 1);
}

TEST_CASE("machines: what is told is durable, and answered, while the provider is at work") {
  Gate gate;
  Desk desk;
  desk.other_source = [&] { return std::make_unique<HeldSource>(desk.site, gate); };
  desk.want(wanted(0));
  const auto tell = [&](const wire::WantedMachines& what) {
    desk.answer = nullptr;
    desk.keeper->want(wire::to_json(what), [&](const nlohmann::json& said) { desk.answer = said; });
    desk.step();
    REQUIRE(desk.answer.is_object());
    CHECK_FALSE(desk.answer.contains("error"));
  };
  SUBCASE("which lists what there is") {
    gate.close("list");
    desk.keeper->look();
    REQUIRE(gate.await());
    tell(wanted(1));
    nlohmann::json costs;
    desk.keeper->costs(wire::to_json(wire::ClusterCosts{}),
                       [&](const nlohmann::json& said) { costs = said; });
    while (costs.is_null()) desk.step();
    SUBCASE("until it answers") {
      gate.open();
      desk.settle();
      desk.tick();
      CHECK(desk.machines() == "gpu-1 pending");
    }
    SUBCASE("and the head ends") {
      desk.again();
      CHECK(desk.keeper->wanted() == wanted(1));
    }
  }
  SUBCASE("which makes what is wanted no more") {
    gate.close("create");
    desk.keeper->want(wire::to_json(wanted(1)), [](const nlohmann::json&) {});
    while (desk.keeper->wanted() != wanted(1)) desk.step();
    desk.step();  // the list
    REQUIRE(gate.await());
    wire::WantedMachines none = wanted(0);
    none.types.clear();
    tell(none);
    gate.open();
    desk.settle();
    CHECK(desk.site.machines.size() == 1);
    desk.tick();
    desk.tick();
    CHECK(desk.site.machines.front().state == MachineState::gone);
    CHECK(desk.machines() == "");
  }
  SUBCASE("which refuses what is wanted no more") {
    desk.site.refuses = Error(ErrorCode::failed, "no such image");
    gate.close("create");
    desk.keeper->want(wire::to_json(wanted(1)), [](const nlohmann::json&) {});
    while (desk.keeper->wanted() != wanted(1)) desk.step();
    desk.step();  // the list
    REQUIRE(gate.await());
    tell(wanted(1, "two"));
    gate.open();
    desk.step();
    desk.site.refuses.reset();
    desk.settle();
    CHECK(desk.error() == "");
    desk.tick();
    CHECK(desk.machines() == "gpu-2 pending");
  }
}

TEST_CASE("machines: ranks end before what they run on is given back") {
  Desk desk;
  desk.have(1);
  desk.busy.insert(NodeId("gpu-1"));
  desk.want(wanted(0));
  CHECK(desk.drained == std::set<NodeId>{NodeId("gpu-1")});
  CHECK(desk.machines() == "gpu-1 running");
  desk.tick();
  CHECK(desk.removed.empty());
  // Wanted after all, it takes ranks again.
  desk.want(wanted(1));
  CHECK(desk.drained.empty());
  desk.want(wanted(0));
  CHECK(desk.drained.size() == 1);
  SUBCASE("the same keeper") {}
  SUBCASE("one that is begun anew takes back what it drained") {
    desk.again();
    desk.look();
    desk.want(wanted(1));
    CHECK(desk.drained.empty());
    desk.want(wanted(0));
  }
  desk.busy.clear();
  desk.tick();
  CHECK(desk.removed[NodeId("gpu-1")] == "it is given back: 0 of type gpu are wanted");
  desk.tick();
  CHECK(desk.machines() == "");
  CHECK_FALSE(desk.due.has_value());
}

TEST_CASE("machines: a job that waits gets its own, and they go when nobody needs them") {
  Desk desk;
  const std::set<NodeId> both{NodeId("gpu-1"), NodeId("gpu-2")};
  desk.want(on_demand(4));
  CHECK(desk.site.jobs == 0);
  CHECK_FALSE(desk.due.has_value());
  REQUIRE(desk.to_come.types.size() == 1);
  CHECK(desk.to_come.types.front().most == 4);
  CHECK_FALSE(desk.to_come.types.front().known);
  desk.needs({}, {JobId("a"), "gpu", 2});
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending");
  CHECK(desk.to_come.nodes == 2);
  CHECK(desk.to_come.types.front().there == 2);
  REQUIRE(desk.to_come.coming.size() == 2);
  CHECK(desk.to_come.coming.front().node.str() == "gpu-1");
  CHECK(desk.to_come.coming.front().since.size() == std::string("08:21:20Z").size());
  SUBCASE("and is stopped before they come") {
    desk.needs(both);
    desk.tick();
    CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending");
    desk.needs({});
    desk.tick();
    CHECK(desk.machines() == "");
    CHECK_FALSE(desk.due.has_value());
    return;
  }
  desk.needs(both);
  desk.site.set("1", MachineState::running);
  desk.tick();
  CHECK(desk.to_come.coming.front().runs);
  desk.come("gpu-1");
  desk.come("gpu-2");
  CHECK(desk.to_come.coming.empty());
  desk.busy = both;
  desk.needs({});
  CHECK(desk.machines() == "gpu-1 running, gpu-2 running");
  SUBCASE("another job comes in time") {
    desk.busy.clear();
    desk.needs({});
    desk.clock.advance(50s);
    desk.busy.insert(NodeId("gpu-2"));
    desk.needs({});
    desk.clock.advance(50s);
    desk.look();
    CHECK(desk.machines() == "gpu-1 running, gpu-2 running");
  }
  desk.busy.clear();
  desk.needs({});
  REQUIRE(desk.due.has_value());
  CHECK(desk.due->first <= 60s);
  desk.clock.advance(60s);
  desk.tick();
  desk.tick();
  CHECK(desk.machines() == "");
  CHECK(desk.drained == both);
  CHECK_FALSE(desk.due.has_value());
}

TEST_CASE("machines: what stands ready is not asked for twice, and stays") {
  Desk desk;
  wire::WantedMachines what = on_demand(4);
  what.types.front().count = 2;
  // A job waits before they are asked for.
  desk.growth.gangs = {{JobId("a"), "gpu", 2}};
  desk.want(what);
  desk.growth.gangs.clear();
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending");
  desk.needs({NodeId("gpu-1"), NodeId("gpu-2")}, {JobId("b"), "gpu", 1});
  desk.growth.needed.emplace("gpu-3");
  desk.tick();
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending, gpu-3 pending");
  for (const char* job : {"1", "2"}) desk.site.set(job, MachineState::running);
  desk.tick();
  for (const char* node : {"gpu-1", "gpu-2", "gpu-3"}) desk.come(node);
  desk.needs({});
  desk.clock.advance(2min);
  desk.tick();
  desk.tick();
  CHECK(desk.machines() == "gpu-1 running, gpu-2 running");
}

TEST_CASE("machines: what an up has made counts until it is lost, and is the up's") {
  Desk desk;
  Machine one = made("node-1", "7");
  one.joins = false;
  one.cluster = ClusterId("lab-id");
  Machine head = one;
  head.node = NodeId("node-0");
  head.head = true;
  desk.site.machines = {head, one};
  wire::WantedMachines what = on_demand(2);
  what.types.front().count = 1;
  desk.want(what);
  CHECK(desk.site.jobs == 0);  // it is being prepared
  CHECK(desk.machines() == "node-1 running");
  CHECK(desk.to_come.coming.size() == 1);
  SUBCASE("and becomes a node") {
    desk.come("node-1");
    desk.needs({}, {JobId("a"), "gpu", 1});
    CHECK(desk.machines() == "gpu-1 pending, node-1 running");
    desk.site.set("1", MachineState::running);
    desk.tick();
    desk.come("gpu-1");
    desk.needs({});
    desk.clock.advance(2min);
    desk.look();
    desk.look();
    CHECK(desk.machines() == "node-1 running");
    SUBCASE("which is lost") {
      desk.goes("node-1", Presence::lost);
      CHECK(desk.machines() == "gpu-2 pending, node-1 running");
      desk.clock.advance(60min);
      desk.look();
      CHECK(desk.removed.empty() == false);  // gpu-2 alone: it never came
      CHECK_FALSE(desk.removed.contains(NodeId("node-1")));
      CHECK(desk.machines().find("node-1 running") != std::string::npos);
    }
  }
  SUBCASE("and never does") {
    desk.clock.advance(MachineKeeper::kPrepareLimit);
    desk.look();
    CHECK(desk.machines() == "gpu-1 pending, node-1 running");
    CHECK(desk.removed.empty());
  }
}

TEST_CASE("machines: one on which somebody is at work is in use, and it is said why it stays") {
  Desk desk;
  const NodeId node("gpu-1");
  desk.want(on_demand(4));
  desk.needs({}, {JobId("a"), "gpu", 1});
  desk.needs({node});
  desk.site.set("1", MachineState::running);
  desk.tick();
  desk.come("gpu-1");
  const auto stays = [&] { return desk.keeper->view()["machines"][0]["stays"].get<std::string>(); };
  const auto pass = [&] {
    desk.needs({});
    desk.clock.advance(2min);
    desk.look();
    desk.look();
  };
  desk.sessions[node] = "a shell is open there";
  pass();
  CHECK(desk.machines() == "gpu-1 running");
  CHECK(stays() == "in use: a shell is open there");
  CHECK(desk.drained.empty());
  desk.sessions.clear();
  desk.needs({});
  CHECK(stays() == "");
  desk.clock.advance(2min);
  desk.sessions[node] = "a checkpoint of a is fetched";  // before it is looked at
  wire::WantedMachines none = on_demand(4);
  none.types.front().max_workers = 0;
  desk.want(none);
  CHECK(desk.machines() == "gpu-1 running");
  CHECK(stays() == "goes once this is over: a checkpoint of a is fetched");
  desk.sessions.clear();
  desk.look();
  desk.look();
  CHECK(desk.machines() == "");
}

TEST_CASE("machines: the queue hears of one that is taken back, whoever has made it") {
  Desk desk;
  Machine one = made("node-1", "7");
  one.joins = false;
  one.cluster = ClusterId("lab-id");
  desk.site.machines = {one};
  wire::WantedMachines what = on_demand(2);
  what.types.front().count = 1;
  desk.want(what);
  desk.come("node-1");
  desk.site.set("7", MachineState::stopping, "Client.UserInitiatedShutdown: by hand");
  desk.look();
  CHECK(desk.taken_back.empty());
  desk.site.set("7", MachineState::stopping, "Server.SpotInstanceTermination: no capacity", true);
  desk.look();
  CHECK(desk.taken_back == std::set<NodeId>{NodeId("node-1")});
  CHECK(desk.words.at(NodeId("node-1")) == "Server.SpotInstanceTermination: no capacity");
  // Another of that name has come: the word is not on that one.
  desk.taken_back.clear();
  Machine other = one;
  other.id = "8/0";
  desk.site.machines.push_back(other);
  desk.look();
  CHECK(desk.taken_back.empty());
  desk.site.set("8/0", MachineState::gone, "Client.UserInitiatedShutdown: by hand");
  desk.look();
  CHECK(desk.taken_back.empty());
}

TEST_CASE("machines: what one of a type has is known from the first") {
  Desk desk;
  wire::WantedMachines what = on_demand(4);
  what.types.front().cpus = 2;
  desk.want(what);
  CHECK_FALSE(desk.to_come.types.front().known);  // its GPUs are not
  what.types.front().gpus = 0;
  desk.want(what);
  CHECK(desk.to_come.types.front().known);
  CHECK(desk.to_come.types.front().each.cpus == 2);
  desk.needs({}, {JobId("a"), "gpu", 1});
  desk.site.set("1", MachineState::running);
  desk.capacity.emplace();
  desk.capacity->cpus = 7;
  desk.come("gpu-1");
  CHECK(desk.to_come.types.front().each.cpus == 7);
  desk.capacity->cpus = 3;
  desk.look();
  CHECK(desk.to_come.types.front().each.cpus == 3);
  // One that is made in another way may have something else.
  what.types.front().launch = "two";
  desk.want(what);
  CHECK(desk.to_come.types.front().each.cpus == 2);
}

TEST_CASE("machines: a cluster that goes down: the others first, and the head's machine last") {
  Desk desk;
  desk.have(1);
  Machine made = desk.site.machines.front();
  made.node = NodeId("node-1");
  made.type = "cpu";
  made.id = "8";
  made.joins = false;
  Machine head = made;
  head.node = NodeId("node-0");
  head.id = "9";
  head.head = true;
  Machine foreign = made;
  foreign.id = "10";
  foreign.cluster = ClusterId("another-id");
  for (const Machine& each : {made, head, foreign}) desk.site.machines.push_back(each);
  desk.goes("node-1", Presence::here);
  wire::ClusterCosts prices;
  prices.types = {{"cpu", {1.0, 1.0}, {}}, {"gpu", {4.0, 4.0}, {}}};
  desk.keeper->costs(wire::to_json(prices), [](const nlohmann::json&) {});
  desk.settle();
  desk.look();
  CHECK(desk.keeper->cost_view()["per_hour"] == 6.0);
  const auto states = [&] {
    Strings rows;
    for (const Machine& each : desk.site.machines) {
      rows.push_back(each.node.str() + " " + to_string(each.state));
    }
    return rows;
  };
  desk.site.keeps = Error(ErrorCode::failed, "EC2 is busy");
  desk.keeper->go_down("nothing has run", false);
  desk.settle();
  CHECK(desk.removed.at(NodeId("node-1")) == "the cluster goes down: nothing has run");
  CHECK(states() == Strings{"gpu-1 running", "node-1 running", "node-0 running", "node-1 running"});
  desk.site.keeps.reset();
  desk.tick();
  CHECK(states() == Strings{"gpu-1 gone", "node-1 gone", "node-0 running", "node-1 running"});
  SUBCASE("until an up says otherwise") {
    desk.want(wanted(1));
    CHECK(states().back() == "gpu-2 pending");
    return;
  }
  SUBCASE("what cannot be stopped is told, and tried again") {
    desk.site.no_stop = Error(ErrorCode::denied, "UnauthorizedOperation");
    desk.tick();
    CHECK(desk.keeper->view()["trouble"]["message"] == "UnauthorizedOperation");
    desk.site.no_stop.reset();
  }
  CHECK(desk.keeper->cost_view()["per_hour"] == 1.0);
  desk.tick();
  CHECK(states() == Strings{"gpu-1 gone", "node-1 gone", "node-0 stopped", "node-1 running"});
  desk.tick();
  CHECK(desk.site.jobs == 1);
}

TEST_CASE("machines: many gangs are asked for in parts, and idle ones go where room is short") {
  Desk desk;
  desk.want(on_demand(100));
  for (int i = 0; i < 40; ++i) {
    desk.growth.gangs.push_back({JobId("job-" + std::to_string(i)), "gpu", 1});
  }
  desk.keeper->needs();
  desk.settle();
  CHECK(desk.site.jobs == MachineKeeper::kMostGangs);
  Desk idle;
  idle.want(on_demand(1));
  idle.needs({}, {JobId("a"), "gpu", 1});
  idle.growth.needed = {NodeId("gpu-1")};
  idle.site.set("1", MachineState::running);
  idle.tick();
  idle.come("gpu-1");
  idle.needs({});
  CHECK(idle.machines() == "gpu-1 running");
  idle.growth.short_of_room = true;
  idle.keeper->needs();
  idle.settle();
  idle.tick();
  CHECK(idle.machines() == "");
}

TEST_CASE("machines: what a person has drained stays drained") {
  Desk desk;
  desk.have(1);
  desk.drained.insert(NodeId("gpu-1"));
  desk.busy.insert(NodeId("gpu-1"));
  desk.want(wanted(0));
  desk.want(wanted(1));
  CHECK(desk.drained.size() == 1);
  CHECK(desk.drains == 0);
}

TEST_CASE("machines: a file that cannot be read is told, and replaced by what is wanted anew") {
  Desk desk;
  desk.have(1);
  const fs::path file = desk.folder.path() / "machines.json";
  std::string text;
  SUBCASE("damaged") {
    text = R"({"wanted": {)";
  }
  SUBCASE("of another head") {
    text = R"({"wanted": {"provider": "fake", "boot": 3}})";
  }
  SUBCASE("of a provider that is not known") {
    text = *read_file_if_there(file, 10000);
    text.replace(text.find("\"fake\""), 6, "\"none\"");
  }
  write_file_atomic(file, text);
  desk.again();
  desk.look();
  const nlohmann::json view = desk.keeper->view();
  CHECK(view["trouble"]["message"].get<std::string>().find(file.string()) != std::string::npos);
  CHECK(view["wanted"].is_null());
  CHECK(desk.site.jobs == 1);
  CHECK(desk.removed.empty());
  desk.want(wanted(1));
  CHECK(desk.keeper->view()["trouble"].is_null());
  CHECK(desk.machines() == "gpu-1 running");
  CHECK(desk.site.jobs == 1);
}

TEST_CASE("machines: one whose credential was taken back is given back") {
  Desk desk;
  desk.want(wanted(1));
  desk.site.set("1", MachineState::running);
  desk.credentials.clear();
  desk.tick();
  desk.tick();
  CHECK(desk.site.machines.front().state == MachineState::gone);
  CHECK(desk.machines() == "gpu-2 pending");
}

TEST_CASE("machines: what is wanted is checked") {
  Desk desk;
  nlohmann::json body = wire::to_json(wanted(1));
  body["types"][0]["count"] = -1;
  CHECK_THROWS_AS(desk.keeper->want(body, {}), Error);
  body = wire::to_json(wanted(1));
  body["types"].push_back(body["types"][0]);
  CHECK_THROWS_AS(desk.keeper->want(body, {}), Error);
  body = wire::to_json(wanted(1));
  body["boot"] = "below/home";
  CHECK_THROWS_AS(desk.keeper->want(body, {}), Error);
  body = wire::to_json(wanted(wire::WantedMachines::kMost));
  CHECK_NOTHROW(wire::wanted_machines_from_json(body));
  body["types"].push_back({{"type", "cpu"}, {"count", 1}, {"launch", "one"}});
  CHECK_THROWS_AS(desk.keeper->want(body, {}), Error);
  body = wire::to_json(wanted(1));
  body["types"][0]["cpus"] = -1;
  CHECK_THROWS_AS(desk.keeper->want(body, {}), Error);
  wire::WantedMachines known = on_demand(4);
  known.types.front().cpus = 7.5;
  known.types.front().gpus = 2;
  known.types.front().memory = 1000;
  known.types.front().priority = -1;
  for (const wire::WantedMachines& each : {wanted(1), known}) {
    CHECK(wire::wanted_machines_from_json(wire::to_json(each)) == each);
  }
}

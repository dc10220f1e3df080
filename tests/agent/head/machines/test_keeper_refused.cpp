// What a keeper does about machines that cannot be had, prepared or given back.
#include "agent/head/machines/keeper.hpp"

#include "tests/agent/head/machines/desk.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing_desk;

TEST_CASE("machines: what cannot be had is asked for ever less often, and said") {
  Desk desk;
  SUBCASE("it is refused") {
    desk.site.refuses = Error(ErrorCode::failed, "no such partition");
    desk.want(wanted(2));
    CHECK(desk.error() == "no such partition");
    CHECK(desk.credentials.empty());
    CHECK(desk.site.jobs == 1);
    for (int i = 0; i < 200; ++i) desk.tick();
    CHECK(desk.site.jobs > 5);
    CHECK(desk.site.jobs < 15);
    desk.site.refuses.reset();
    desk.want(wanted(2));
    CHECK(desk.error() == "");
    // Their names were nobody's.
    CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending");
  }
  SUBCASE("it ends before its node has come") {
    desk.want(wanted(1));
    for (int i = 1; i < 100; ++i) {
      desk.site.set(std::to_string(desk.site.jobs), MachineState::gone, "cannot read boot");
      desk.tick();
    }
    CHECK(desk.error() == "gpu-1 did not join: its machine is gone: cannot read boot");
    CHECK(desk.site.jobs > 2);
    CHECK(desk.site.jobs < 15);
  }
}

TEST_CASE("machines: what ends as soon as it has come is not begun anew at once") {
  Desk desk;
  std::function<void(Desk&, const NodeId&)> come;
  SUBCASE("and is seen while it is there") {
    come = [](Desk& at, const NodeId& node) {
      at.site.set(std::to_string(at.site.jobs), MachineState::running);
      at.come(node.str());
    };
  }
  SUBCASE("and has come and gone before the provider answers") {
    come = [](Desk& at, const NodeId& node) {
      at.nodes[node] = Presence::here;
      at.keeper->changed(node);
    };
  }
  desk.want(wanted(1));
  for (int i = 0; i < 100; ++i) {
    const std::string job = std::to_string(desk.site.jobs);
    for (const auto& [node, presence] : std::map(desk.nodes)) {
      if (presence == Presence::unseen) come(desk, node);
    }
    for (auto& [node, presence] : desk.nodes) presence = Presence::lost;
    desk.site.set(job, MachineState::gone);
    desk.look();
    desk.tick();
  }
  CHECK(desk.error().find(" ended as soon as it had come: ") != std::string::npos);
  CHECK(desk.site.jobs < 20);
}

TEST_CASE("machines: one of several that does not come is said, and another asked for") {
  Desk desk;
  desk.want(wanted(2));
  desk.site.set("1", MachineState::running);
  desk.tick();
  desk.come("gpu-1");
  const auto begun = desk.clock.now();
  while (desk.clock.now() - begun < 9min) desk.tick();
  CHECK(desk.site.jobs == 1);
  while (desk.clock.now() - begun < 12min) desk.tick();
  CHECK(desk.site.jobs == 2);
  CHECK(desk.error().starts_with("gpu-2 did not join"));
  CHECK(desk.machines() == "gpu-1 running, gpu-2 running, gpu-3 pending");
}

TEST_CASE("machines: a gang that cannot be had is said to who waits, and tried ever less often") {
  Desk desk;
  desk.site.refuses = Error(ErrorCode::failed, "no such partition");
  desk.want(on_demand(4));
  desk.growth.gangs = {{JobId("a"), "gpu", 2}};
  desk.keeper->needs();
  desk.settle();
  CHECK(desk.to_come.types.front().trouble == "no such partition");
  CHECK(desk.error() == "no such partition");
  for (int i = 0; i < 100; ++i) desk.tick();
  CHECK(desk.site.jobs < 15);
  desk.needs({});
  CHECK(desk.error() == "");
  desk.tick();
  CHECK_FALSE(desk.due.has_value());
}

TEST_CASE("machines: what was refused to many is asked for few") {
  Desk desk;
  desk.site.refuses = Error(ErrorCode::failed, "too many nodes");
  desk.want(on_demand(100));
  desk.growth.gangs = {{JobId("a"), "gpu", 64}};
  desk.keeper->needs();
  desk.settle();
  CHECK(desk.to_come.types.front().refused == 64);
  desk.site.refuses.reset();
  desk.growth.gangs.push_back({JobId("b"), "gpu", 1});
  desk.keeper->needs();
  desk.settle();
  CHECK(desk.machines() == "gpu-1 pending");
}

TEST_CASE("machines: one of a gang that never joins is no longer to come") {
  Desk desk;
  desk.want(on_demand(4));
  desk.needs({}, {JobId("a"), "gpu", 2});
  desk.growth.needed = {NodeId("gpu-1"), NodeId("gpu-2")};
  desk.site.set("1", MachineState::running);
  desk.tick();
  desk.come("gpu-1");
  CHECK(desk.to_come.coming.size() == 1);
  const auto begun = desk.clock.now();
  while (desk.clock.now() - begun < 12min) desk.tick();
  CHECK(desk.to_come.coming.empty());
  CHECK(desk.to_come.nodes == 0);
  CHECK(desk.to_come.types.front().there == 1);
}

TEST_CASE("machines: another of one that cannot be prepared is not asked for at once") {
  Desk desk;
  desk.want(on_demand(4));
  desk.needs({}, {JobId("a"), "gpu", 1});
  desk.growth.needed = {NodeId("gpu-1")};
  desk.site.set("1", MachineState::running);
  desk.tick();
  desk.come("gpu-1");
  desk.broken.insert(NodeId("gpu-1"));
  desk.growth.gangs = {{JobId("a"), "gpu", 1}};
  desk.look();
  CHECK(desk.site.jobs == 1);
  CHECK(desk.error() == "gpu-1 is broken");
  const auto begun = desk.clock.now();
  while (desk.site.jobs == 1) desk.tick();
  CHECK(desk.clock.now() - begun >= MachineFailures::kFirstRetry);
}

TEST_CASE("machines: as long as none gets prepared they are asked for ever less often") {
  Desk desk;
  std::function<void(const NodeId&)> fail;
  std::string said;
  SUBCASE("for its setup commands fail") {
    fail = [&](const NodeId& node) { desk.broken.insert(node); };
    said = " is broken";
  }
  SUBCASE("for its machine ends before") {
    fail = [&](const NodeId& node) {
      desk.nodes[node] = Presence::away;
      desk.site.set(std::to_string(desk.site.jobs), MachineState::gone);
    };
    said = " ended before it was prepared: its machine is gone";
  }
  const auto ask = [&] {
    desk.growth = {};
    desk.growth.gangs = {{JobId("a"), "gpu", 1}};
    const int asked = desk.site.jobs;
    desk.look();
    while (desk.site.jobs == asked) desk.tick();
    const NodeId node = desk.site.machines.back().node;
    desk.growth = {};
    desk.growth.needed = {node};
    return node;
  };
  const auto come = [&](const NodeId& node) {
    desk.site.set(std::to_string(desk.site.jobs), MachineState::running);
    desk.look();
    desk.come(node.str());
  };
  desk.want(on_demand(100));
  NodeId next = ask();
  const auto begun = desk.clock.now();
  while (desk.clock.now() - begun < 3h) {
    const NodeId node = next;
    desk.preparing.insert(node);
    come(node);
    for (int i = 0; i < 2; ++i) {
      desk.clock.advance(1min);
      desk.look();
    }
    fail(node);
    next = ask();
    CHECK(desk.error() == node.str() + said);
  }
  CHECK(desk.site.jobs < 25);
  // Until one is prepared, and stays.
  come(next);
  desk.clock.advance(1min);
  CHECK(desk.to_come.types.front().failed);
  desk.look();
  CHECK_FALSE(desk.to_come.types.front().failed);
}

TEST_CASE("machines: what cannot be given back is tried ever less often") {
  Desk desk;
  desk.have(2);
  desk.site.keeps = Error(ErrorCode::failed, "slurmctld is busy");
  desk.want(wanted(0));
  for (int i = 0; i < 10; ++i) desk.tick();
  CHECK(desk.tick() == MachineKeeper::kLastLook);
  CHECK(desk.keeper->view()["machines"][0]["reason"] == "cannot be given back: slurmctld is busy");
  desk.site.keeps.reset();
  desk.tick();
  desk.tick();
  CHECK(desk.machines() == "");
}

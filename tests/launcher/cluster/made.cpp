#include <doctest/doctest.h>

#include "launcher/cluster/door.hpp"
#include "launcher/cluster/down.hpp"
#include "launcher/cluster/up.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "tests/launcher/remote/session_support.hpp"
#include "tests/support/fake_cloud.hpp"

// Clusters of machines that are made: a cloud in memory whose machines are all this one, with real
// agents, in a home of the test's own.
using namespace dtrain;
using testing::FakeCloud;
using testing::FakeCloudProvider;

namespace {

struct House {
  House() {
    cloud->transport = [] { return std::make_unique<LocalTransport>(); };
  }
  ~House() { testing::end_processes(home.path()); }

  UpOptions options() const {
    UpOptions how;
    how.agent = DTRAIN_AGENT_BINARY;
    how.provider = std::make_shared<FakeCloudProvider>(cloud, "c");
    how.may_make = [](const ClusterPlan&) { return true; };
    return how;
  }
  UpReport up_now(bool replace = false) {
    UpOptions how = options();
    how.replace = replace;
    return up(spec, how);
  }
  DownReport down_now() const {
    DownOptions how;
    how.agent = DTRAIN_AGENT_BINARY;
    how.provider = std::make_shared<FakeCloudProvider>(cloud, "c");
    return down("c", how);
  }
  void workers(int count) { spec.node_types[1].min_workers = count; }

  static ClusterSpec cluster() {
    ClusterSpec spec;
    spec.cluster_name = "c";
    spec.provider.kind = ProviderKind::aws;
    spec.max_workers = 10;
    NodeType head;
    head.name = "head";
    NodeType gpu;
    gpu.name = "gpu";
    gpu.min_workers = 1;
    spec.node_types = {head, gpu};
    spec.head_node_type = "head";
    return spec;
  }

  testing::Home home;
  testing::VariableIs state{"XDG_STATE_HOME", (home.path() / "laptop").string()};
  testing::VariableIs door{"DTRAIN_HEAD_SOCKET", std::nullopt};
  testing::VariableIs chosen{"DTRAIN_CLUSTER", std::nullopt};
  testing::VariableIs spare{"DTRAIN_SPARE_ROOT", (home.path() / "spare").string()};
  std::shared_ptr<FakeCloud> cloud = std::make_shared<FakeCloud>();
  ClusterSpec spec = cluster();
};

// "node-0 i-1, node-1: why not"
std::string names(const UpReport& report) {
  std::vector<std::string> nodes;
  for (const Machine& machine : report.nodes) {
    nodes.push_back(machine.node.str() + " " + machine.id);
  }
  for (const NodeUp& node : report.each) {
    if (node.error) nodes.push_back(node.machine.node.str() + ": " + node.error->what());
  }
  return join(nodes, ", ");
}

}  // namespace

TEST_CASE("a dry run shows what would be made and what it costs, and asks for nothing") {
  House house;
  house.cloud->prices["gpu"] = 3.5;
  UpOptions how = house.options();
  how.dry_run = true;
  how.may_make = nullptr;
  const UpReport report = up(house.spec, how);
  CHECK(report.action == UpAction::plan);
  REQUIRE(report.plan.nodes.size() == 2);
  CHECK(report.plan.nodes[1].action == NodeAction::create);
  CHECK(report.plan.nodes[1].machine.price == 3.5);
  CHECK(report.plan.nodes[1].machine.zone == "zone-a");
  CHECK(!report.plan.nodes[0].machine.price);
  CHECK(report.each[1].steps.front().step == "machine");
  CHECK(house.cloud->asked == 0);
  CHECK(!load_cluster("c"));
}

TEST_CASE("what costs is made when somebody says so") {
  House house;
  UpOptions how = house.options();
  how.may_make = nullptr;
  CHECK_THROWS_AS(up(house.spec, how), Error);
  how.may_make = [](const ClusterPlan& plan) { return plan.nodes.size() != 2; };
  const UpReport report = up(house.spec, how);
  CHECK(report.action == UpAction::decline);
  CHECK(!report.complete);
  CHECK(house.cloud->asked == 0);
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

TEST_CASE("nodes on machines that are made: up, more, fewer, another image, another laptop, down") {
  House house;
  const UpReport first = house.up_now();
  REQUIRE(names(first) == "node-0 i-1, node-1 i-2");
  CHECK(first.complete);
  CHECK(first.id.str() == house.cloud->instance("i-1").tags.at("dtrain-cluster-id"));
  CHECK(house.up_now().action == UpAction::nothing);

  house.workers(2);
  CHECK(names(house.up_now()) == "node-0 i-1, node-1 i-2, node-2 i-3");
  house.workers(1);
  const UpReport fewer = house.up_now();
  CHECK(names(fewer) == "node-0 i-1, node-1 i-2");
  REQUIRE(fewer.removed.size() == 2);
  CHECK(fewer.removed[0].find("node-2: left the cluster; ") == 0);
  CHECK(fewer.removed[1] == "node-2: machine i-3 is gone");
  CHECK(house.cloud->count(MachineState::running) == 2);

  house.spec.node_types[1].node_config["image"] = "two";
  const UpReport kept = house.up_now();
  CHECK(names(kept) == "node-0 i-1, node-1 i-2");
  REQUIRE(kept.each[1].warnings.size() == 1);
  CHECK(kept.each[1].warnings[0].find("up --replace") != std::string::npos);
  CHECK(names(house.up_now(true)) == "node-0 i-1, node-1 i-4");
  CHECK(house.cloud->instance("i-2").state == MachineState::gone);

  // A machine that vanished is another's place; another laptop has no notes at all.
  house.cloud->vanish("i-4");
  testing::end_processes(house.home.path() / ".dtrain" / first.id.str() / "node-1");
  const testing::VariableIs other("XDG_STATE_HOME", (house.home.path() / "other").string());
  const UpReport taken = house.up_now();
  CHECK(taken.id == first.id);
  CHECK(names(taken) == "node-0 i-1, node-1 i-5");

  const DownReport gone = house.down_now();
  std::string left;
  for (const DownRow& row : gone.rows) {
    if (!row.gone) left += row.node + " " + row.what + " " + row.now + " " + row.note + "; ";
  }
  CHECK(left == "");
  CHECK(gone.complete);
  CHECK(house.cloud->count(MachineState::gone) == house.cloud->instances.size());
  CHECK(cluster_processes(house.home.path() / ".dtrain").empty());
}

TEST_CASE("one machine that cannot be had: the others are up, and the next up asks again") {
  House house;
  house.workers(2);
  house.cloud->capacity["gpu"] = 1;
  const UpReport report = house.up_now();
  CHECK(!report.complete);
  CHECK(names(report) == "node-0 i-1, node-1 i-2, node-2: no capacity for gpu");
  house.cloud->capacity["gpu"] = 1;
  CHECK(house.up_now().complete);
  CHECK(house.down_now().complete);
}

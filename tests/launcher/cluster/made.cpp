#include "tests/launcher/cluster/made.hpp"

#include <nlohmann/json.hpp>

#include "launcher/cluster/door.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/wire/client.hpp"

using namespace dtrain;
using namespace dtrain::testing;

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

TEST_CASE("max_cost_per_hour: more than that is refused before anything is made") {
  House house;
  house.workers(2);
  house.cloud->prices = {{"head", 0.1}, {"gpu", 12.24}};
  house.spec.max_cost_per_hour = 20;
  house.spec.max_cost_location = {"c.yaml", 7, 20};
  const std::string refused =
      "with 3 new machines the cluster would cost $24.58 an hour, and max_cost_per_hour is $20.00";
  const auto why = [&] {
    try {
      house.up_now();
      return std::string();
    } catch (const Error& error) {
      CHECK(error.location()->line == 7);
      return error.message();
    }
  };
  CHECK(why() == refused);
  UpOptions dry = house.options();
  dry.dry_run = true;
  const UpReport plan = up(house.spec, dry);
  CHECK_FALSE(plan.complete);
  CHECK(plan.cost->refused == refused);
  CHECK(plan.cost->per_hour == doctest::Approx(24.58));
  house.cloud->prices.erase("gpu");
  CHECK(why() == "max_cost_per_hour is $20.00, and no price is known of type gpu");
  CHECK(house.cloud->asked == 0);
  CHECK(!load_cluster("c"));

  // Those that stay count.
  house.workers(1);
  house.cloud->prices["gpu"] = 12.24;
  CHECK(house.up_now().complete);
  house.workers(2);
  CHECK(why() ==
        "with 1 new machine the cluster would cost $24.58 an hour, and max_cost_per_hour is "
        "$20.00");
  house.workers(1);
  house.cloud->prices["gpu"] = 22;
  const UpReport above = house.up_now();
  CHECK(above.complete);
  CHECK(above.warnings ==
        Lines{"the cluster costs $22.10 an hour, and max_cost_per_hour is $20.00: the head asks "
              "for no more"});
  CHECK(house.down_now().complete);
}

TEST_CASE("the head knows what the cluster costs, and that what has left costs no more") {
  House house;
  house.cloud->prices = {{"head", 0.1}, {"gpu", 12.24}};
  CHECK(house.up_now().complete);
  const auto costs = [&] {
    const HeadDoor door = HeadDoor::open(load_cluster("c").value(), *house.options().provider);
    return wire::ApiClient(door.socket(), "c").get("/v1/status").at("costs");
  };
  CHECK(costs()["per_hour"].get<double>() == doctest::Approx(12.34));
  CHECK(costs()["machines"].size() == 2);
  CHECK(costs()["unpriced"] == 0);
  const double before = costs()["spent"].get<double>();
  CHECK(before > 0);
  house.workers(0);
  CHECK(house.up_now().complete);
  CHECK(costs()["per_hour"].get<double>() == doctest::Approx(0.1));
  CHECK(costs()["machines"].size() == 1);
  CHECK(costs()["spent"].get<double>() >= before);
  CHECK(house.down_now().complete);
}

TEST_CASE("a head that asked for machines, and is to ask for none, still gives back what comes") {
  House house;
  REQUIRE(house.up_now().complete);
  const auto wanted = [&](const nlohmann::json& told) {
    const HeadDoor door = HeadDoor::open(load_cluster("c").value(), *house.options().provider);
    const wire::ApiClient client(door.socket(), "c");
    if (!told.is_null()) client.post("/v1/machines", told);
    return client.get("/v1/machines").at("wanted");
  };
  CHECK(wanted(nullptr).is_null());  // it never asked for any
  wire::WantedMachines told = house.wanted_machines();
  wanted(wire::to_json(told));
  CHECK(house.up_now().complete);
  told.types.clear();
  told.down_when_idle.reset();
  CHECK(wire::wanted_machines_from_json(wanted(nullptr)) == told);
  CHECK(house.down_now().complete);
}

TEST_CASE("an up that would make a second head is refused, also where the first is stopped") {
  House house;
  REQUIRE(house.up_now().complete);
  const ClusterSpec before = house.spec;
  SUBCASE("by another root") {
    house.spec.provider.root = (house.home.path() / "elsewhere").string();
  }
  SUBCASE("by another user") {
    house.spec.auth.ssh_user = "other";
  }
  const auto refused = [&] {
    try {
      house.up_now();
      FAIL("it went on");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::conflict);
      CHECK(
          error.message().starts_with("the head of cluster c stays where it is while it is up: "));
      CHECK(error.hint() == "dtrain down -c c first");
    }
  };
  refused();
  CHECK(!fs::exists(house.home.path() / "elsewhere"));
  CHECK(load_cluster("c")->spec == to_json(before));
  house.cloud->stop("i-1");
  refused();
  // One that is gone is in nobody's way.
  house.cloud->vanish("i-1");
  house.cloud->vanish("i-2");
  testing::end_processes(house.home.path() / ".dtrain" / load_cluster("c")->id.str());
  CHECK(house.up_now().complete);
  CHECK(house.cloud->count(MachineState::running) == 2);
  CHECK(house.down_now().complete);
}

TEST_CASE("what costs nothing is made without a question") {
  House house;
  house.spec.provider.kind = ProviderKind::kubernetes;
  UpOptions how = house.options();
  how.may_make = nullptr;
  CHECK(up(house.spec, how).complete);
  CHECK(house.down_now().complete);
}

TEST_CASE("a dry run of ten thousand machines asks for a price once a type") {
  House house;
  house.spec.max_workers = 10000;
  house.workers(9999);
  UpOptions how = house.options();
  how.dry_run = true;
  const UpReport report = up(house.spec, how);
  CHECK(report.each.size() == 10000);
  CHECK(report.plan.nodes.size() == 10000);
  CHECK(house.cloud->offers == 2);
}

TEST_CASE("a machine that stays pending holds back no other") {
  House house;
  house.workers(2);
  house.cloud->stay = {"node-2"};
  UpOptions how = house.options();
  std::stop_source stop;
  how.access.stop = stop.get_token();
  Awaited ready(2);
  how.progress = [&](const NodeProgress& told) {
    if (told.state == NodeProgress::State::ready) ready.happens();
  };
  bool in_time = false;
  house.cloud->on_step = [&] {
    if (house.cloud->now < 5) return;
    in_time = ready.wait();
    stop.request_stop();
  };
  const UpReport report = up(house.spec, how);
  CHECK(in_time);
  CHECK(!report.complete);
  CHECK(names(report) ==
        "node-0 i-1, node-1 i-2, node-2: its machine is still pending: is being made");
  house.cloud->on_step = nullptr;
  house.cloud->stay.clear();
  CHECK(names(house.up_now()) == "node-0 i-1, node-1 i-2, node-2 i-3");
  CHECK(house.down_now().complete);
}

TEST_CASE("with --min-nodes up does not wait for what is pending") {
  House house;
  house.workers(2);
  house.cloud->stay = {"node-2"};
  UpOptions how = house.options();
  how.min_nodes = 2;
  const UpReport report = up(house.spec, how);
  CHECK(report.complete);
  CHECK(names(report) ==
        "node-0 i-1, node-1 i-2, node-2: its machine is still pending: is being made");
  // It is noted, so that a down finds it whatever the list says.
  house.cloud->late = {"i-3"};
  CHECK(house.down_now().complete);
  CHECK(house.cloud->count(MachineState::gone) == 3);
}

TEST_CASE("machines that were made and not prepared are in the notes") {
  House house;
  house.cloud->transport = nullptr;
  CHECK(!house.up_now().complete);
  house.cloud->late = {"i-1", "i-2"};
  CHECK(house.down_now().complete);
  CHECK(house.cloud->count(MachineState::gone) == 2);
}

TEST_CASE("a head that cannot be asked is told of where machines would be made") {
  House house;
  REQUIRE(house.up_now().complete);
  house.cloud->late = {"i-2"};
  house.cloud->transport = nullptr;
  UpOptions how = house.options();
  Lines asked;
  how.may_make = [&](const ClusterPlan& plan) {
    asked = plan.warnings;
    return false;
  };
  const UpReport report = up(house.spec, how);
  CHECK(report.action == UpAction::decline);
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].find("node-1 (i-2): ") == 0);
  CHECK(asked[1].find("the head cannot be asked (") == 0);
  CHECK(report.warnings == asked);
  CHECK(!has_action(report.plan, NodeAction::release));
  house.cloud->transport = [] { return std::make_unique<LocalTransport>(); };
  CHECK(house.up_now().action == UpAction::nothing);
  CHECK(house.down_now().complete);
}

TEST_CASE(
    "the head is begun first, also when its machine comes last and one is worked on at once") {
  House house;
  house.cloud->slow = {{"node-0", 9}};
  UpOptions how = house.options();
  how.max_parallel = 1;
  CHECK(names(up(house.spec, how)) == "node-0 i-1, node-1 i-2");
  CHECK(house.down_now().complete);
}

TEST_CASE("a head whose machine does not come: nobody waits for the others") {
  House house;
  house.cloud->fail = {"node-0"};
  house.cloud->stay = {"node-1"};
  const UpReport report = house.up_now();
  CHECK(!report.complete);
  CHECK(names(report) ==
        "node-0: its machine is gone again: spot interruption, "
        "node-1: its machine is still pending: is being made");
  CHECK(house.down_now().complete);
}

TEST_CASE("nodes that leave drain together, and each is given back when it is done") {
  House house;
  house.workers(2);
  const UpReport before = house.up_now();
  REQUIRE(before.complete);
  const auto provider = house.options().provider;
  const HeadDoor door = HeadDoor::open(load_cluster("c").value(), *provider);
  const wire::ApiClient client(door.socket(), "c");
  // A rank on one of the workers.
  client.post("/v1/nodes/node-0/drain", nlohmann::json::object());
  JobSpec job;
  job.name = "j";
  job.command = {"/bin/sleep", "600"};
  job.workdir = "/";
  const std::string id = client.post("/v1/jobs", {{"submission_id", "s"},
                                                  {"spec", to_json(job)},
                                                  {"secrets", nlohmann::json::object()}})["job"];
  wire::ApiStream follow = client.open("/v1/jobs/" + id + "/follow");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (client.get("/v1/jobs/" + id)["state"] != "running") {
    REQUIRE(follow.wait(until).what == wire::ApiStream::What::text);
  }
  const std::string busy = client.get("/v1/jobs/" + id)["nodes"][0];
  const std::string idle = busy == "node-1" ? "node-2" : "node-1";
  client.post("/v1/nodes/node-0/drain", {{"undo", true}});

  house.workers(0);
  UpOptions how = house.options();
  bool was_given_back = false;
  how.progress = [&](const NodeProgress& told) {
    // By the thread that gives machines back, each time it has looked at who drains.
    if (told.node.str() != busy || told.text != "draining: its ranks run on") return;
    for (const FakeCloud::Instance& each : house.cloud->instances) {
      if (each.tags.at("dtrain-node") != idle || each.state == MachineState::running) continue;
      if (!std::exchange(was_given_back, true)) {
        client.post("/v1/jobs/" + id + "/stop", {{"grace_s", 0}});
      }
    }
    if (std::chrono::steady_clock::now() > until) {
      client.post("/v1/jobs/" + id + "/stop", {{"grace_s", 0}});
    }
  };
  const UpReport report = up(house.spec, how);
  CHECK(was_given_back);
  CHECK(report.complete);
  REQUIRE(report.removed.size() == 4);
  CHECK(report.removed[0].find(idle + ": left the cluster; ") == 0);
  CHECK(report.removed[1].find(busy + ": left the cluster; ") == 0);
  CHECK(house.cloud->count(MachineState::running) == 1);
  CHECK(house.down_now().complete);
}

TEST_CASE("a machine that is there twice is given back alone: the node that has its name stays") {
  House house;
  const UpReport first = house.up_now();
  REQUIRE(first.complete);
  Request twin;
  twin.type = "gpu";
  twin.nodes = {NodeId("node-1")};
  twin.cluster = first.id;
  twin.launch = launch_hash(house.spec, "gpu");
  house.cloud->now = 100;  // later than the others
  house.options().provider->create({twin}, [](const MachineOutcome&) {});
  house.cloud->step();
  house.cloud->step();
  const UpReport report = house.up_now();
  CHECK(names(report) == "node-0 i-1, node-1 i-2");
  CHECK(report.complete);
  CHECK(report.removed == Lines{"node-1: not in the cluster", "node-1: machine i-3 is gone"});
  CHECK(house.cloud->instance("i-2").state == MachineState::running);
  CHECK(house.up_now().action == UpAction::nothing);
  CHECK(house.down_now().complete);
}

TEST_CASE("a --replace that is stopped once machines are given back is not complete") {
  House house;
  REQUIRE(house.up_now().complete);
  house.spec.node_types[1].node_config["image"] = "two";
  house.cloud->steps_stopping = 1000000;
  std::stop_source stop;
  house.cloud->on_step = [&] { stop.request_stop(); };
  UpOptions how = house.options();
  how.replace = true;
  how.access.stop = stop.get_token();
  const UpReport report = up(house.spec, how);
  CHECK(!report.complete);
  REQUIRE(report.removed.size() == 2);
  CHECK(report.removed[1] == "node-1: machine i-2 is stopping");
  const std::string said = join(report.warnings, "\n");
  CAPTURE(said);
  CHECK(said.ends_with("stopped before machines were made anew; dtrain up makes them"));
  house.cloud->on_step = nullptr;
  house.cloud->instance("i-2").left = house.cloud->steps_stopping = 1;
  CHECK(house.up_now().complete);
  CHECK(house.down_now().complete);
}

TEST_CASE("Ctrl-C while nodes leave: the one that is at it comes to its end, the others stay") {
  House house;
  house.workers(2);
  REQUIRE(house.up_now().complete);
  house.workers(0);
  std::stop_source stop;
  UpOptions how = house.options();
  how.max_parallel = 1;
  how.access.stop = stop.get_token();
  how.progress = [&](const NodeProgress& told) {
    if (told.step == "stop") stop.request_stop();
  };
  const UpReport report = up(house.spec, how);
  CHECK(!report.complete);
  REQUIRE(report.removed.size() == 3);
  CHECK(report.removed[0].find("node-1: left the cluster; ") == 0);
  CHECK(report.removed[1] == "node-2: stays, for this up was stopped");
  CHECK(report.removed[2] == "node-1: machine i-2 is stopping");
  CHECK(house.cloud->count(MachineState::running) == 2);
  house.cloud->step();
  const UpReport again = house.up_now();
  CHECK(again.complete);
  CHECK(names(again) == "node-0 i-1");
  CHECK(house.down_now().complete);
}

TEST_CASE("who takes a cluster over writes over nothing that an up wrote meanwhile") {
  House house;
  Request head;
  head.type = "head";
  head.head = true;
  head.nodes = {NodeId("node-0")};
  head.cluster = ClusterId("c-x");
  const auto provider = house.options().provider;
  provider->create({head}, [](const MachineOutcome&) {});
  house.cloud->step();
  house.cloud->step();
  std::optional<ClusterLock> other = ClusterLock::take("c", nullptr);
  Access access;
  access.warn = [&](const std::string&) {
    ClusterState written = remembered(house.spec, ClusterId("c-x"));
    written.agent = "/the/other";
    save_cluster(written);
    other.reset();
  };
  const auto adopted = adopt(house.spec, *provider, DTRAIN_AGENT_BINARY, false, access);
  REQUIRE(adopted);
  CHECK(adopted->agent == "/the/other");
  CHECK(load_cluster("c").value().agent == "/the/other");
  CHECK(house.down_now().complete);
}

namespace {

// Hosts that a YAML lists, all of them this machine.
class ListedHosts : public Provider {
 public:
  ListedHosts(std::vector<HostSpec> hosts, std::set<NodeId> silent)
      : hosts_(std::move(hosts)), silent_(std::move(silent)) {}

  std::vector<Machine> list() override {
    std::vector<Machine> machines;
    for (const HostSpec& host : hosts_) {
      Machine& machine = machines.emplace_back();
      machine.node = host.node;
      machine.host = host;
      machine.head = machines.size() == 1;
      machine.address = "127.0.0.1";
    }
    return machines;
  }
  void create(const std::vector<Request>&, const OutcomeSink&) override {}
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override {
    for (const Machine& machine : machines) tell({machine, std::nullopt});
  }
  std::unique_ptr<Transport> reach(const Machine& machine) override {
    if (silent_.contains(machine.node)) {
      throw Error(ErrorCode::unreachable, "no answer from " + machine.node.str());
    }
    return std::make_unique<LocalTransport>();
  }

 private:
  std::vector<HostSpec> hosts_;
  std::set<NodeId> silent_;
};

}  // namespace

TEST_CASE("a host that leaves and cannot be cleaned: up is not complete until it is") {
  House house;
  ClusterSpec spec;
  spec.cluster_name = "c";
  spec.provider.kind = ProviderKind::ssh;
  for (const char* name : {"a", "b"}) {
    HostSpec& host = spec.provider.hosts.emplace_back();
    host.host = name;
    host.node = NodeId(name);
  }
  UpOptions how;
  how.agent = DTRAIN_AGENT_BINARY;
  const auto up_with = [&](std::set<NodeId> silent) {
    how.provider = std::make_shared<ListedHosts>(spec.provider.hosts, std::move(silent));
    return up(spec, how);
  };
  REQUIRE(up_with({}).complete);
  spec.provider.hosts.pop_back();
  const UpReport left = up_with({NodeId("b")});
  CHECK(!left.complete);
  CHECK(left.removed == Lines{"b: left the cluster; not cleaned: no answer from b"});
  const UpReport cleaned = up_with({});
  CHECK(cleaned.complete);
  REQUIRE(cleaned.removed.size() == 1);
  CHECK(cleaned.removed[0].find("files removed") != std::string::npos);
  CHECK(up_with({}).removed == Lines{});
  DownOptions end;
  end.agent = DTRAIN_AGENT_BINARY;
  end.provider = how.provider;
  CHECK(down("c", end).complete);
}

TEST_CASE("an up of hosts is noted before any is touched, until their head tells of the cluster") {
  House house;
  ClusterSpec spec;
  spec.cluster_name = "c";
  spec.source = "/my/cluster.yaml";
  spec.provider.kind = ProviderKind::ssh;
  HostSpec& host = spec.provider.hosts.emplace_back();
  host.host = "a";
  host.node = NodeId("a");
  // What a `down` would say, were the `up` killed when it reaches the host.
  class Watched final : public ListedHosts {
   public:
    using ListedHosts::ListedHosts;
    std::unique_ptr<Transport> reach(const Machine& machine) override {
      if (!load_cluster("c")) CHECK_THROWS_AS(refuse_unnoted("c"), Error);
      return ListedHosts::reach(machine);
    }
  };
  UpOptions how;
  how.agent = DTRAIN_AGENT_BINARY;
  how.provider = std::make_shared<Watched>(spec.provider.hosts, std::set<NodeId>{host.node});
  CHECK(!up(spec, how).complete);
  CHECK_NOTHROW(refuse_unnoted("c"));  // nothing was reached
  how.provider = std::make_shared<Watched>(spec.provider.hosts, std::set<NodeId>{});
  REQUIRE(up(spec, how).complete);
  CHECK_NOTHROW(refuse_unnoted("c"));
  DownOptions end;
  end.agent = DTRAIN_AGENT_BINARY;
  end.provider = how.provider;
  CHECK(down("c", end).complete);
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
  CHECK(names(taken) == "node-0 i-1, node-2 i-5");
  CHECK(taken.removed == Lines{"node-1: left the cluster; its machine is gone"});

  const DownReport gone = house.down_now();
  CHECK(not_gone(gone) == Lines{});
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

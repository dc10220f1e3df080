#include "launcher/cluster/machines.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "tests/support/fake_cloud.hpp"

using namespace dtrain;
using testing::FakeCloud;
using testing::FakeCloudProvider;

namespace {

// One laptop, its YAML, and what it has of the cluster.
struct Laptop {
  std::shared_ptr<FakeCloud> cloud;
  ClusterId id;
  ClusterSpec spec = spec_of(2);
  FakeCloudProvider provider{cloud, "c"};
  std::vector<std::string> told;
  std::vector<std::string> arrived;
  std::stop_source stop;
  ClusterPlan plan;

  static ClusterSpec spec_of(int workers) {
    ClusterSpec spec;
    spec.provider.kind = ProviderKind::aws;
    spec.max_workers = 10;
    NodeType head;
    head.name = "head";
    NodeType gpu;
    gpu.name = "gpu";
    gpu.min_workers = workers;
    spec.node_types = {head, gpu};
    spec.head_node_type = "head";
    return spec;
  }

  ClusterPlan look(const std::set<std::string>& made = {}, bool replace = false) {
    ClusterPlan now = decide(wanted_nodes(spec), {provider.list(), {}, made}, replace);
    if (now.cluster.empty()) now.cluster = id;
    return now;
  }

  MachineWork work() {
    return {[this](const MachineOutcome& outcome) {
              told.push_back(
                  outcome.machine.node.str() + " " +
                  (outcome.error ? outcome.error->message() : to_string(outcome.machine.state)));
            },
            stop.get_token()};
  }

  std::vector<MachineOutcome> make() {
    plan = look();
    arrived.clear();
    const std::vector<MachineOutcome> asked = ask_for_machines(
        provider, plan, [this](const std::set<std::string>& made) { return look(made); }, work());
    std::vector<MachineOutcome> all(asked.size());
    follow_machines(provider, asked, work(), [&](std::size_t i, const MachineOutcome& outcome) {
      arrived.push_back(outcome.machine.node.str());
      all[i] = outcome;
    });
    return all;
  }

  std::vector<MachineOutcome> give_back_what_goes() {
    std::vector<Machine> going;
    for (const NodePlan& each : plan.nodes) {
      if (each.action == NodeAction::release || each.action == NodeAction::replace) {
        going.push_back(each.machine);
      }
    }
    return give_back(provider, going, work());
  }
};

std::size_t failed(const std::vector<MachineOutcome>& outcomes) {
  return static_cast<std::size_t>(
      std::count_if(outcomes.begin(), outcomes.end(), [](const auto& each) { return each.error; }));
}

std::vector<std::string> words(const std::vector<MachineOutcome>& outcomes) {
  std::vector<std::string> all;
  for (const MachineOutcome& each : outcomes) {
    all.push_back(each.machine.node.str() + " " + each.machine.id + " " +
                  to_string(each.machine.state) + (each.error ? ": " + each.error->message() : ""));
  }
  return all;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("machines are asked for, followed while they are pending, and found again") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  CHECK(words(laptop.make()) ==
        Words{"node-0 i-1 running", "node-1 i-2 running", "node-2 i-3 running"});
  CHECK(laptop.told == Words{"node-0 pending", "node-1 pending", "node-2 pending", "node-0 running",
                             "node-1 running", "node-2 running"});
  CHECK(cloud->instance("i-1").tags.at("dtrain-cluster-id") == "c-a");
  CHECK(cloud->instance("i-1").tags.at("dtrain-role") == "head");
  CHECK(cloud->instance("i-2").tags.at("dtrain-type") == "gpu");

  // Another laptop knows nothing of it, and takes it over.
  Laptop other{cloud, ClusterId("c-b")};
  CHECK(failed(other.make()) == 0);
  CHECK(other.plan.cluster == ClusterId("c-a"));
  CHECK(cloud->asked == 3);
  // A cluster of another name is none of its business.
  FakeCloudProvider stranger(cloud, "d");
  CHECK(stranger.list().empty());
}

TEST_CASE("one that cannot be had, one that ends, one that vanishes: the others are there") {
  const auto cloud = std::make_shared<FakeCloud>();
  cloud->capacity["gpu"] = 2;
  cloud->fail = {"node-2"};
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.spec = Laptop::spec_of(3);
  CHECK(words(laptop.make()) == Words{"node-0 i-1 running", "node-1 i-2 running",
                                      "node-2 i-3 gone: its machine is gone again: spot "
                                      "interruption",
                                      "node-3  gone: no capacity for gpu"});
  cloud->capacity["gpu"] = 10;
  cloud->vanish("i-2");
  laptop.told.clear();
  CHECK(words(laptop.make()) == Words{"node-0 i-1 running", "node-1 i-4 running",
                                      "node-2 i-5 gone: its machine is gone again: spot "
                                      "interruption",
                                      "node-3 i-6 running"});
}

TEST_CASE("machines that are stopped are started, and none is made in their place") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.make();
  for (const char* id : {"i-1", "i-3"}) cloud->stop(id);
  CHECK(words(laptop.make()) ==
        Words{"node-0 i-1 running", "node-1 i-2 running", "node-2 i-3 running"});
  CHECK(cloud->instances.size() == 3);
  cloud->stop("i-3");
  cloud->no_start = {"i-3"};
  CHECK(words(laptop.make()) ==
        Words{"node-0 i-1 running", "node-1 i-2 running", "node-2 i-3 stopped: no room for i-3"});
  // Where one that is to be made can never be, nothing is started either.
  cloud->stop("i-1");
  cloud->never = {"gpu"};
  laptop.spec = Laptop::spec_of(4);
  CHECK_THROWS_WITH_AS(laptop.make(), "there is no type gpu", Error);
  CHECK(cloud->count(MachineState::stopped) == 2);
  cloud->never.clear();
  // Without its head nothing is started, nor made.
  cloud->no_start = {"i-1"};
  CHECK_THROWS_WITH_AS(laptop.make(), "no room for i-1", Error);
  CHECK(cloud->instances.size() == 3);
  CHECK(cloud->count(MachineState::stopped) == 2);
}

TEST_CASE("each machine is told of when it runs, and none of them twice") {
  const auto cloud = std::make_shared<FakeCloud>();
  cloud->slow = {{"node-0", 4}, {"node-1", 6}};
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.make();
  CHECK(laptop.arrived == Words{"node-2", "node-0", "node-1"});
  laptop.make();
  CHECK(laptop.arrived == Words{"node-0", "node-1", "node-2"});
}

TEST_CASE("a provider that fails while machines are followed: each of them has its error") {
  struct Broken : FakeCloudProvider {
    using FakeCloudProvider::FakeCloudProvider;
    void follow(const std::vector<Machine>&, const OutcomeSink&, const std::stop_token&) override {
      throw Error(ErrorCode::unreachable, "no answer from the cloud");
    }
  };
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  Broken broken(cloud, "c");
  laptop.plan = laptop.look();
  const auto asked = ask_for_machines(
      broken, laptop.plan, [&](const auto& made) { return laptop.look(made); }, laptop.work());
  Words said;
  follow_machines(broken, asked, laptop.work(), [&](std::size_t, const MachineOutcome& outcome) {
    said.push_back(outcome.machine.node.str() + ": " + outcome.error.value().message());
  });
  CHECK(said == Words{"node-0: no answer from the cloud", "node-1: no answer from the cloud",
                      "node-2: no answer from the cloud"});
}

namespace {

// Fails once it has made one.
struct Breaks : FakeCloudProvider {
  using FakeCloudProvider::FakeCloudProvider;
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override {
    FakeCloudProvider::create({requests.front()}, tell);
    throw Error(ErrorCode::unreachable, "no answer from the cloud");
  }
};

}  // namespace

TEST_CASE("a provider that fails while machines are asked for: what was made counts") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  Breaks breaks(cloud, "c");
  laptop.plan = laptop.look();
  const auto asked = ask_for_machines(
      breaks, laptop.plan, [&](const auto& made) { return laptop.look(made); }, laptop.work());
  CHECK(words(asked) == Words{"node-0 i-1 pending", "node-1  pending: no answer from the cloud",
                              "node-2  pending: no answer from the cloud"});
  CHECK(cloud->count(MachineState::pending) == 1);
}

TEST_CASE("a list that fails once machines were made: they are named") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.spec = Laptop::spec_of(1);
  laptop.plan = laptop.look();
  const auto fails = [](const auto&) -> ClusterPlan {
    throw Error(ErrorCode::unreachable, "no answer from the cloud");
  };
  try {
    ask_for_machines(laptop.provider, laptop.plan, fails, laptop.work());
    FAIL("it did not throw");
  } catch (const Error& error) {
    CHECK(error.hint() ==
          "it has made node-0 (i-1), node-1 (i-2): dtrain up goes on with them, dtrain down gives "
          "them back");
  }
}

TEST_CASE("what was there and the list missed is not given back as made by this up") {
  struct TellsWhatIsThere : FakeCloudProvider {
    using FakeCloudProvider::FakeCloudProvider;
    void create(const std::vector<Request>&, const OutcomeSink& tell) override {
      for (const Machine& machine : list()) {
        if (machine.id == "i-3") tell({machine, std::nullopt});
      }
    }
  };
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.make();
  cloud->late = {"i-3"};
  laptop.plan = laptop.look();
  REQUIRE(has_action(laptop.plan, NodeAction::create));
  cloud->late.clear();
  TellsWhatIsThere provider(cloud, "c");
  const auto refuses = [](const auto&) {
    ClusterPlan plan;
    plan.refused = "no";
    return plan;
  };
  const auto asked = ask_for_machines(provider, laptop.plan, refuses, laptop.work(), {"i-3"});
  CHECK(words(asked).back() == "node-2 i-3 running");
  CHECK(cloud->instance("i-3").state == MachineState::running);
}

TEST_CASE("what was made is given back when the plan is refused then, and nothing else") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  cloud->before_create = [&] {
    for (const char* other : {"c-x", "c-y"}) {
      Request head;
      head.type = "head";
      head.head = true;
      head.nodes = {NodeId("node-0")};
      head.cluster = ClusterId(other);
      FakeCloudProvider(cloud, "c").create({head}, [](const MachineOutcome&) {});
      cloud->step();
    }
  };
  CHECK_THROWS_WITH_AS(laptop.make(),
                       "there are two clusters of this name: c-x, whose head is i-1, and c-y, "
                       "whose head is i-2",
                       Error);
  CHECK(cloud->count(MachineState::gone) == 3);
  CHECK(cloud->instance("i-1").state == MachineState::running);
  CHECK(cloud->instance("i-2").state == MachineState::running);
}

TEST_CASE("a machine that stays pending is waited for until one has enough, and then kept") {
  const auto cloud = std::make_shared<FakeCloud>();
  cloud->stay = {"node-2"};
  Laptop laptop{cloud, ClusterId("c-a")};
  cloud->on_step = [&] {
    if (cloud->now == 5) laptop.stop.request_stop();
  };
  const auto outcomes = laptop.make();
  CHECK(laptop.arrived == Words{"node-0", "node-1", "node-2"});
  CHECK(failed(outcomes) == 1);
  CHECK(outcomes[2].error->message() == "its machine is still pending: is being made");
  cloud->stay.clear();
  Laptop later{cloud, ClusterId("c-b")};
  CHECK(failed(later.make()) == 0);
  CHECK(later.plan.nodes[2].reason == "on its way: is being made");
  CHECK(cloud->asked == 3);
}

TEST_CASE("two laptops at once: one cluster comes of it, and no machine is left over") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop first{cloud, ClusterId("c-a")};
  Laptop second{cloud, ClusterId("c-b")};
  SUBCASE("the one asks between the other's look and its asking") {
    std::vector<MachineOutcome> of_first;
    cloud->before_create = [&] { of_first = first.make(); };
    CHECK(failed(second.make()) == 0);
    CHECK(failed(of_first) == 0);
    CHECK(second.plan.cluster == ClusterId("c-a"));
  }
  SUBCASE("they want different numbers of nodes") {
    second.spec = Laptop::spec_of(3);
    cloud->before_create = [&] { first.make(); };
    second.make();  // the fourth is asked for by the next
    CHECK(failed(second.make()) == 0);
    CHECK(second.plan.nodes.size() == 4);
  }
  SUBCASE("a head was there, and both ask for the same workers") {
    Laptop before{cloud, ClusterId("c-a")};
    before.spec = Laptop::spec_of(0);
    before.make();
    cloud->before_create = [&] { first.make(); };
    CHECK(failed(second.make()) == 0);
  }
  std::set<std::string> nodes;
  std::set<std::string> clusters;
  for (const Machine& machine : first.provider.list()) {
    if (machine.state == MachineState::gone) continue;
    CHECK(machine.state == MachineState::running);
    CHECK(nodes.insert(machine.node.str()).second);
    clusters.insert(machine.cluster.str());
  }
  CHECK(nodes.size() ==
        std::max(first.spec.node_types[1].min_workers, second.spec.node_types[1].min_workers) + 1U);
  CHECK(clusters == std::set<std::string>{"c-a"});
}

TEST_CASE("what is no longer wanted is given back and followed to its end") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.make();
  laptop.spec = Laptop::spec_of(1);
  laptop.plan = laptop.look();
  CHECK(words(laptop.give_back_what_goes()) == Words{"node-2 i-3 gone"});
  CHECK(cloud->count(MachineState::running) == 2);
  CHECK(!has_action(laptop.look(), NodeAction::release));
  cloud->vanish("i-2");
  CHECK(words(give_back(laptop.provider, laptop.provider.list(), laptop.work())) ==
        Words{"node-0 i-1 gone", "node-1 i-2 gone", "node-2 i-3 gone"});
}

TEST_CASE("another image: the old machine goes, and the next look asks for the new one") {
  const auto cloud = std::make_shared<FakeCloud>();
  Laptop laptop{cloud, ClusterId("c-a")};
  laptop.make();
  laptop.spec.node_types[1].node_config["image"] = "two";
  CHECK(!has_action(laptop.look(), NodeAction::replace));
  laptop.plan = laptop.look({}, true);
  CHECK(words(laptop.give_back_what_goes()) == Words{"node-1 i-2 gone", "node-2 i-3 gone"});
  CHECK(words(laptop.make()) ==
        Words{"node-0 i-1 running", "node-1 i-4 running", "node-2 i-5 running"});
  CHECK(cloud->instance("i-4").tags.at("dtrain-launch") == launch_hash(laptop.spec, "gpu"));
}

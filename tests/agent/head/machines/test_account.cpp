#include "agent/head/machines/account.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "tests/support/fake_clock.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace std::chrono_literals;

namespace {

wire::ClusterCosts prices(std::optional<double> gpu = 3.0) {
  wire::ClusterCosts costs;
  costs.types = {{"head", {0.1, 0.1}, {}}, {"gpu", {gpu, gpu}, {}}};
  return costs;
}

Machine machine_at(const std::string& id, const std::string& type, WallTime created) {
  Machine one;
  one.id = id;
  one.node = NodeId("of-" + id);
  one.type = type;
  one.head = type == "head";
  one.joins = type != "head";
  one.created = created;
  return one;
}

struct Counted {
  // As a head that is killed and started anew.
  void again() { account = MachineAccount(account.dump()); }
  void see(const std::vector<Machine>& machines, bool all = true) {
    account.see(machines, all, clock.wall());
  }
  double spent() const { return account.view(clock.wall())["spent"].get<double>(); }
  double per_hour() const { return account.view(clock.wall())["per_hour"].get<double>(); }

  testing::FakeClock clock;
  WallTime begin = clock.wall();
  MachineAccount account;
};

}  // namespace

TEST_CASE("costs: from when a machine was made until it is seen to be gone") {
  Counted office;
  CHECK(office.account.view(office.begin).is_null());
  CHECK(office.account.dump().is_null());
  CHECK_FALSE(office.account.see({machine_at("i-1", "gpu", office.begin)}, true, office.begin));
  office.account.tell(prices(), office.begin);
  const Machine head = machine_at("i-0", "head", office.begin);
  const Machine gpu = machine_at("i-1", "gpu", office.begin + 1h);
  office.clock.advance(2h);
  office.see({head, gpu});
  CHECK(office.per_hour() == doctest::Approx(3.1));
  CHECK(office.spent() == doctest::Approx(0.2 + 3));
  CHECK(office.account.view(office.clock.wall())["since"] == rfc3339(office.begin));
  office.clock.advance(1h);
  office.see({head});
  CHECK(office.per_hour() == doctest::Approx(0.1));
  office.clock.advance(1h);
  CHECK(office.spent() == doctest::Approx(0.4 + 6));
  // What does not run any more costs nothing.
  Machine stopping = head;
  stopping.state = MachineState::stopping;
  office.see({stopping});
  office.clock.advance(1h);
  CHECK(office.spent() == doctest::Approx(0.4 + 6));
  CHECK(office.account.view(office.clock.wall())["machines"].empty());
}

TEST_CASE("costs: nothing is counted twice, whenever the head is killed") {
  Counted office;
  office.account.tell(prices(), office.begin);
  office.again();
  const Machine head = machine_at("i-0", "head", office.begin);
  const Machine gpu = machine_at("i-1", "gpu", office.begin);
  office.see({head, gpu});
  office.clock.advance(1h);
  const nlohmann::json before = office.account.dump();
  office.see({head});  // gpu is gone, and this is not written
  CHECK(office.spent() == doctest::Approx(3.1));
  office.account = MachineAccount(before);
  office.clock.advance(1h);
  office.see({head});
  CHECK(office.spent() == doctest::Approx(0.2 + 6));  // it was seen then
  office.again();
  office.see({head});
  CHECK(office.spent() == doctest::Approx(0.2 + 6));
  office.account.settle(office.clock.wall());
  office.again();
  office.account.settle(office.clock.wall());
  CHECK(office.spent() == doctest::Approx(0.2 + 6));
  // A list that misses it for a moment.
  office.see({});
  office.clock.advance(1min);
  office.again();
  office.see({head});
  office.clock.advance(59min);
  CHECK(office.spent() == doctest::Approx(0.3 + 6));
}

TEST_CASE("costs: one that was stopped and is started again") {
  Counted office;
  office.account.tell(prices(), office.begin);
  Machine gpu = machine_at("i-1", "gpu", office.begin);
  office.see({gpu});
  office.clock.advance(1h);
  SUBCASE("as the head has seen") {
    gpu.state = MachineState::stopping;
    office.see({gpu});
    office.clock.advance(10h);
    gpu.state = MachineState::running;
  }
  SUBCASE("or with it, which has ended in order") {
    office.account.settle(office.clock.wall());
    office.again();
    office.clock.advance(10h);
  }
  SUBCASE("or with it, and an up tells of it first") {
    office.account.settle(office.clock.wall());
    office.again();
    office.clock.advance(10h);
    wire::ClusterCosts told = prices();
    told.machines = {{gpu.node, gpu.id, gpu.type, "", false, false, office.clock.wall()}};
    office.account.tell(told, office.clock.wall());
  }
  gpu.created = office.clock.wall();
  office.see({gpu});
  office.clock.advance(1h);
  CHECK(office.spent() == doctest::Approx(6));
}

TEST_CASE("costs: newer prices count from when they were told") {
  Counted office;
  office.account.tell(prices(), office.begin);
  office.see({machine_at("i-1", "gpu", office.begin)});
  office.clock.advance(1h);
  office.account.tell(prices(5), office.clock.wall());
  office.clock.advance(1h);
  CHECK(office.spent() == doctest::Approx(8));
  // Where it is not known any more the last one stays, of what is there.
  office.account.tell(prices(std::nullopt), office.clock.wall());
  office.clock.advance(1h);
  CHECK(office.spent() == doctest::Approx(13));
  CHECK_FALSE(office.account.most_of("gpu"));
}

TEST_CASE("costs: machines without a price are counted as such") {
  Counted office;
  office.account.tell(prices(std::nullopt), office.begin);
  const Machine head = machine_at("i-0", "head", office.begin);
  office.see(
      {head, machine_at("i-1", "gpu", office.begin), machine_at("i-2", "gpu", office.begin)});
  office.clock.advance(1h);
  office.see({head, machine_at("i-1", "gpu", office.begin)});
  office.again();
  nlohmann::json view = office.account.view(office.clock.wall());
  CHECK(view["unpriced"] == 1);
  CHECK(view["unpriced_ended"] == 1);
  CHECK(view["machines"][1]["price"].is_null());
  CHECK(office.spent() == doctest::Approx(0.1));
  // Once it has one it counts from its beginning.
  office.account.tell(prices(), office.clock.wall());
  view = office.account.view(office.clock.wall());
  CHECK(view["unpriced"] == 0);
  CHECK(view["machines"][1]["price"] == 3.0);
  CHECK(office.spent() == doctest::Approx(3.1));
}

TEST_CASE("costs: of spot machines, and of those in their place") {
  Counted office;
  wire::ClusterCosts costs = prices();
  costs.types[1] = {"gpu", {1.0, 3.0}, {{"p3", {1.0, 3.0}}, {"g5", {0.5, 2.0}}}};
  office.account.tell(costs, office.begin);
  CHECK(office.account.most_of("gpu") == 3.0);
  Machine spot = machine_at("i-1", "gpu", office.begin);
  spot.spot = true;
  Machine other = machine_at("i-3", "gpu", office.begin);
  office.see({spot, machine_at("i-2", "gpu", office.begin), other});
  CHECK(office.per_hour() == doctest::Approx(1 + 3 + 3));
  // What it is comes to be known with the next list.
  other.instance_type = "g5";
  office.clock.advance(1h);
  office.see({spot, machine_at("i-2", "gpu", office.begin), other});
  CHECK(office.per_hour() == doctest::Approx(1 + 3 + 2));
  CHECK(office.account.price_of("i-3") == 2.0);
  office.again();
  CHECK(office.account.price_of("i-3") == 2.0);
}

TEST_CASE("costs: what is told and what is there count for the bound") {
  Counted office;
  CHECK(office.account.limit({"gpu"}, {{"gpu", 1}}) == CostLimit{});
  wire::ClusterCosts costs = prices();
  costs.max_per_hour = 20;
  office.account.tell(costs, office.begin);
  Machine standing = machine_at("i-1", "gpu", office.begin);
  standing.joins = false;
  office.see(
      {machine_at("i-0", "head", office.begin), standing, machine_at("i-2", "gpu", office.begin)});
  const CostLimit limit = office.account.limit({"gpu", "other"}, {{"gpu", 2}, {"other", 1}});
  CHECK(limit.most == 20.0);
  CHECK(limit.now == doctest::Approx(0.1 + 3 * 3));
  CHECK(limit.least == doctest::Approx(0.1 + 2 * 3));
}

TEST_CASE("costs: the account does not grow with the machines that there were") {
  Counted office;
  office.account.tell(prices(), office.begin);
  for (int i = 0; i < 1000; ++i) {
    office.see({machine_at("i-" + std::to_string(i), "gpu", office.clock.wall())});
    office.clock.advance(30min);
  }
  office.see({});
  CHECK(office.spent() == doctest::Approx(1500));
  CHECK(office.account.dump()["machines"].size() < 5);
}

TEST_CASE("costs: what is told is checked, and comes back whole") {
  wire::ClusterCosts costs = prices();
  costs.max_per_hour = 20;
  costs.machines = {{NodeId("node-0"), "i-0", "head", "m5.large", true, false, WallTime(1000ms)}};
  costs.types.push_back({"none", {}, {{"g5", {0.5, 2.0}}, {"p3", {}}}});
  CHECK(wire::cluster_costs_from_json(wire::to_json(costs)) == costs);
  const auto refused = [&](const char* key, const char* inner, const nlohmann::json& value) {
    nlohmann::json body = wire::to_json(costs);
    (inner == nullptr ? body[key] : body[key][0][inner]) = value;
    CHECK_THROWS_AS(wire::cluster_costs_from_json(body), Error);
  };
  refused("max_per_hour", nullptr, -1);
  refused("max_per_hour", nullptr, "20");
  refused("types", "price", -0.5);
  refused("types", "most", 1e10);
  refused("types", "name", "gpu");
  refused("machines", "id", "");
  CHECK_THROWS_AS(MachineAccount(nlohmann::json{{"spent", 1}}), Error);
}

#include "agent/head/machines/keeper.hpp"

#include "tests/agent/head/machines/desk.hpp"

using namespace dtrain;
using namespace dtrain::head;
using namespace dtrain::head::testing_desk;

TEST_CASE("machines: missing ones are asked for as far as they may cost") {
  wire::WantedMachines two = wanted(3);
  two.types.push_back({"cpu", 2, "one", {}});
  const auto price = [](const std::string& type) {
    return type == "gpu" ? std::optional<double>(3) : std::nullopt;
  };
  MachineDecision decision = decide_machines(two, {});
  CHECK(stay_below(decision, two, {}, price).empty());
  CHECK(decision.create == std::map<std::string, int>{{"gpu", 3}, {"cpu", 2}});
  CHECK(stay_below(decision, two, {10.0, 4, 4}, price) ==
        std::map<std::string, std::string>{
            {"gpu",
             "1 is missing: that is $3.00 an hour beside $10.00 for others, max_cost_per_hour is "
             "$10.00"},
            {"cpu", "2 are missing: its price is not known, and max_cost_per_hour is $10.00"}});
  CHECK(decision.create == std::map<std::string, int>{{"gpu", 2}});
}

TEST_CASE("machines: what they cost, and the bound of it, outlive the head") {
  Desk desk;
  CHECK(desk.keeper->cost_view().is_null());
  wire::ClusterCosts costs;
  costs.max_per_hour = 10;
  costs.types = {{"head", {1.0, 1.0}, {}}, {"gpu", {4.0, 4.0}, {}}};
  costs.machines = {{NodeId("node-0"), "i-0", "head", "", true, false, desk.clock.wall()}};
  const auto tell = [&] {
    desk.keeper->costs(wire::to_json(costs),
                       [&](const nlohmann::json& said) { desk.answer = said; });
    desk.settle();
    CHECK_FALSE(desk.answer.contains("error"));
  };
  tell();
  // Nobody asks a provider: these are all.
  CHECK(desk.keeper->cost_view()["per_hour"] == 1.0);
  desk.clock.advance(2h);
  CHECK(desk.keeper->cost_view()["spent"].get<double>() == doctest::Approx(2));
  costs.machines.clear();
  tell();
  CHECK(desk.keeper->cost_view()["per_hour"] == 0.0);
  CHECK(desk.keeper->cost_view()["spent"].get<double>() == doctest::Approx(2));

  Machine head = made("node-0", "7", "head");
  head.head = true;
  head.joins = false;
  head.cluster = ClusterId("lab-id");
  head.created = desk.clock.wall();
  desk.site.machines.push_back(head);
  desk.want(wanted(3));
  const std::string error =
      "1 is missing: that is $4.00 an hour beside $9.00 for others, max_cost_per_hour is $10.00";
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending");
  CHECK(desk.error() == error);
  desk.tick();
  CHECK(desk.error() == error);
  CHECK(desk.keeper->cost_view()["per_hour"] == 9.0);
  desk.again();
  desk.look();
  CHECK(desk.error() == error);
  CHECK(desk.site.jobs == 1);
  const nlohmann::json view = desk.keeper->cost_view();
  CHECK(view["per_hour"] == 9.0);
  CHECK(view["machines"].size() == 3);
  CHECK(view["max_per_hour"] == 10.0);
  // As what jobs need.
  desk.want(on_demand(4));
  desk.tick();
  CHECK(desk.to_come.cost == CostLimit{10.0, 1, 1});
  CHECK(desk.to_come.types.front().price == 4.0);
  // A bound that is raised.
  costs.max_per_hour = 100;
  tell();
  desk.want(wanted(3));
  CHECK(desk.machines() == "gpu-1 pending, gpu-2 pending, gpu-3 pending");
  CHECK(desk.error() == "");
}

TEST_CASE(
    "machines: one that an up has told of, and that is gone, does not come back to cost again") {
  Desk desk;
  wire::ClusterCosts costs;
  costs.types = {{"head", {1.0, 1.0}, {}}, {"gpu", {4.0, 4.0}, {}}};
  costs.machines = {{NodeId("node-0"), "1", "head", "", true, false, desk.clock.wall()},
                    {NodeId("node-1"), "2", "gpu", "", false, false, desk.clock.wall()}};
  for (const auto& each : costs.machines) {
    Machine& machine = desk.site.machines.emplace_back(made(each.node.str(), each.id, each.type));
    machine.head = each.head;
    machine.joins = false;
    machine.cluster = ClusterId("lab-id");
    machine.created = each.created;
  }
  desk.keeper->costs(wire::to_json(costs), [](const nlohmann::json&) {});
  desk.settle();
  desk.want(on_demand(4));
  desk.clock.advance(1h);
  desk.site.set("2", MachineState::gone);
  desk.look();
  CHECK(desk.keeper->cost_view()["per_hour"] == 1.0);
  desk.clock.advance(2 * MachineAccount::kRemembered);
  desk.look();
  // Nobody is asked any more.
  SUBCASE("the same head") {}
  SUBCASE("one that is started anew") {
    desk.again();
  }
  desk.want({});
  CHECK(desk.keeper->cost_view()["per_hour"] == 1.0);
  CHECK(desk.keeper->cost_view()["spent"].get<double>() == doctest::Approx(3 + 4));
}

TEST_CASE("machines: an account that cannot be read is told, and begun anew") {
  Desk desk;
  desk.keeper.reset();
  write_file_atomic(desk.folder.path() / "costs.json", "{");
  desk.again();
  const std::string said = desk.keeper->cost_view()["error"]["message"];
  CHECK(said.find("costs.json") != std::string::npos);
  desk.keeper->costs(wire::to_json(wire::ClusterCosts{}), [](const nlohmann::json&) {});
  desk.settle();
  CHECK(desk.keeper->cost_view()["spent"] == 0.0);
}

#include "launcher/tune/objective.hpp"

#include <cmath>

#include "tests/launcher/tune/support.hpp"

using namespace dtrain::tune;
using namespace dtrain::tune::test;

TEST_CASE("a report is measured by its time and its metric") {
  const nlohmann::json metrics = {{"loss", 0.5}, {"epoch", 3}, {"broken", nullptr}, {"note", "x"}};
  const auto found = measured(metrics, 4, 7, "loss", kIteration);
  REQUIRE(found);
  CHECK((found->trial == 4 && found->time == 7 && found->value == 0.5));
  CHECK(measured(metrics, 4, 7, "loss", "epoch")->time == 3);
  CHECK(std::isnan(measured(metrics, 4, 7, "broken", "epoch")->value));
  CHECK_FALSE(measured(metrics, 4, 7, "accuracy", "epoch"));
  CHECK_FALSE(measured(metrics, 4, 7, "loss", "seconds"));
  CHECK_FALSE(measured(metrics, 4, 7, "note", "epoch"));
  CHECK_FALSE(measured(metrics, 4, 7, "loss", "broken"));
  CHECK_FALSE(measured(nlohmann::json(), 4, 7, "loss", kIteration));
  CHECK(score(Mode::max, 3) == 3);
  CHECK(score(Mode::min, 3) == -3);
  CHECK(score(Mode::min, NAN) == -INFINITY);
  CHECK(score(Mode::min, -INFINITY) == -INFINITY);
}

TEST_CASE("stop conditions") {
  Problems problems;
  const auto stop = stop_from_json(
      nlohmann::json::parse(R"({"loss": "<= 0.1", "accuracy": ">0.9", "training_iteration": 50})"),
      {"stop"}, problems);
  CHECK(problems.empty());
  CHECK(to_json(stop).dump() ==
        R"({"accuracy":"> 0.9","loss":"<= 0.1","training_iteration":">= 50.0"})");
  CHECK_FALSE(stop_reason(stop, {{"loss", 0.2}}, 3));
  CHECK(stop_reason(stop, {{"loss", 0.1}}, 3) == "loss is 0.1, <= 0.1");
  CHECK_FALSE(stop_reason(stop, {{"accuracy", 0.9}, {"loss", nullptr}}, 3));
  CHECK(stop_reason(stop, {{"accuracy", 0.91}}, 3) == "accuracy is 0.91, > 0.9");
  CHECK(stop_reason(stop, nlohmann::json::object(), 50) == "training_iteration is 50, >= 50");
  stop_from_json(nlohmann::json::parse(R"({"loss": "about 3", "a": true})"), {"stop"}, problems);
  CHECK(lines(problems) ==
        "stop.a: must be a number, or one behind >=, <=, > or <, not true\n"
        "stop.loss: must be a number, or one behind >=, <=, > or <, not \"about 3\"\n");
  Problems none;
  CHECK(objective_from_json("loss", "max", {}, none).mode == Mode::max);
  CHECK(none.empty());
  objective_from_json(nullptr, "most", {}, none);
  CHECK(lines(none) ==
        "metric: the metric's name is wanted, as trials report it\n"
        "mode: must be min or max, not \"most\"\n");
}

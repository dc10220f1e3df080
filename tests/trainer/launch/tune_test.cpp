#include "trainer/launch/tune.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "trainer/core/params.hpp"
#include "trainer/launch/cluster.hpp"

using namespace dtrain::train;
using nlohmann::json;

namespace {

const TuneConfig kConfig{.metric = "accuracy", .mode = "max"};
const json kSpace = {{"lr", tune::loguniform(1e-4, 1e-1)}};

json trial(int number, const char* state, const json& value) {
  return {{"trial", number},
          {"state", state},
          {"params", {{"lr", 0.1 * number}}},
          {"value", value},
          {"iteration", 3},
          {"metrics", {{"accuracy", value.is_null() ? json(0) : value}}},
          {"job", "m-" + std::to_string(number)}};
}

}  // namespace

TEST_CASE("parameters come from the environment, over the defaults") {
  std::map<std::string, std::string> variables;
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const json defaults = {{"lr", 0.1}, {"model", {{"layers", 2}, {"width", 8}}}};
  CHECK(params(defaults, lookup) == defaults);
  CHECK(params(json::object(), lookup) == json::object());
  variables["DTRAIN_PARAMS"] = R"({"lr": 0.5, "model": {"layers": 3}})";
  CHECK(params(defaults, lookup) == json({{"lr", 0.5}, {"model", {{"layers", 3}, {"width", 8}}}}));
  variables["DTRAIN_PARAMS"] = "[1]";
  CHECK_THROWS_WITH(params(defaults, lookup), "DTRAIN_PARAMS is no JSON object: [1]");
  variables["DTRAIN_PARAMS"] = "{";
  CHECK_THROWS_AS(params(defaults, lookup), Error);
}

TEST_CASE("a search is what the configurations say, and nothing else") {
  json least = search_document(kSpace, kConfig, {}, {}, {1, 1}, {"/x/train", "3"});
  least.erase("workdir");
  CHECK(least == json({{"command", {"/x/train", "3"}},
                       {"nnodes", 1},
                       {"nproc_per_node", 1},
                       {"max_restarts", 0},
                       {"space", {{"lr", {{"loguniform", {1e-4, 1e-1}}}}}},
                       {"metric", "accuracy"},
                       {"mode", "max"},
                       {"num_samples", 1}}));
  // Of this program fit() is to end the ranks, of another one it may be a step of many.
  const json own = search_document(kSpace, kConfig, {}, {}, {1, 1}, {});
  CHECK(own.at("env") == json({{"DTRAIN_FIT", "1"}}));
  CHECK(own.at("command") == json(this_command()));
  const TuneConfig tune{.metric = "loss",
                        .mode = "min",
                        .num_samples = 30,
                        .max_concurrent_trials = 4,
                        .time_budget = std::chrono::seconds(60),
                        .search_alg = "tpe",
                        .scheduler = {{"algorithm", "asha"}, {"max_t", 27}},
                        .stop = {{"loss", "<= 0.1"}},
                        .points_to_evaluate = {{{"lr", 0.01}}}};
  const ScalingConfig scaling{
      .num_workers = 4, .use_gpu = true, .resources_per_worker = {{"CPU", 0.5}, {"memory", 6e9}}};
  const RunConfig run{.name = "n",
                      .storage_path = "/s",
                      .checkpoint_config = {.num_to_keep = 2, .score_attribute = "loss"},
                      .failure_config = {.max_failures = -1}};
  const json all = search_document(kSpace, tune, scaling, run, {2, 2}, {"t"});
  CHECK(all.at("nnodes") == 2);
  CHECK(all.at("max_restarts") == 1000000);
  CHECK(all.at("resources").dump() == R"({"CPU":0.5,"GPU":1,"memory":6000000000})");
  CHECK(all.at("search") ==
        json({{"algorithm", "tpe"}, {"points_to_evaluate", json::array({{{"lr", 0.01}}})}}));
  CHECK(all.at("scheduler").at("max_t") == 27);
  CHECK(all.at("time_budget_s") == 60);
  CHECK(all.at("max_concurrent") == 4);
  CHECK(all.at("checkpoint") ==
        json({{"num_to_keep", 2}, {"score_attribute", "loss"}, {"score_order", "max"}}));
  CHECK(all.at("storage_path") == "/s");
  CHECK(all.at("name") == "n");
  CHECK(all.at("metric") == "loss");
  CHECK(all.at("mode") == "min");
  CHECK(all.at("num_samples") == 30);
  CHECK(all.at("nproc_per_node") == 2);
  CHECK(all.at("stop") == json({{"loss", "<= 0.1"}}));
}

TEST_CASE("domains are written as docs/search_yaml.md has them") {
  CHECK(tune::choice({"a", 2, true}) == json::parse(R"({"choice": ["a", 2, true]})"));
  CHECK(tune::grid_search({1, 2}) == json::parse(R"({"grid_search": [1, 2]})"));
  CHECK(tune::uniform(0, 1) == json::parse(R"({"uniform": [0, 1]})"));
  CHECK(tune::quniform(0, 1, 0.1) == json::parse(R"({"quniform": [0, 1, 0.1]})"));
  CHECK(tune::loguniform(1e-4, 1) == json::parse(R"({"loguniform": [1e-4, 1]})"));
  CHECK(tune::qloguniform(0.1, 10, 0.1) == json::parse(R"({"qloguniform": [0.1, 10, 0.1]})"));
  CHECK(tune::randn() == json::parse(R"({"randn": [0, 1]})"));
  CHECK(tune::randn(5, 2) == json::parse(R"({"randn": [5, 2]})"));
  CHECK(tune::randint(1, 9) == json::parse(R"({"randint": [1, 9]})"));
  CHECK(tune::lograndint(1, 1000) == json::parse(R"({"lograndint": [1, 1000]})"));
  CHECK(tune::sample_from("layers * 32") == json::parse(R"({"sample_from": "layers * 32"})"));
}

TEST_CASE("texts in a space are themselves, whatever they look like") {
  const json space = {{"version", "1.0"},
                      {"kind", tune::choice({"a", "b"})},
                      {"model", {{"act", "choice:x:y"}, {"when", "kind == 'a'"}}},
                      {"width", tune::sample_from("layers * 2")},
                      {"pair", tune::choice({{"a", 1}, {"b", 2}})},
                      {"one", tune::grid_search({64})},
                      {"layers", 2}};
  const json written = search_document(space, kConfig, {}, {}, {1, 1}, {"t"}).at("space");
  CHECK(written.at("version") == json({{"constant", "1.0"}}));
  CHECK(written.at("kind") == json({{"choice", {"a", "b"}}}));
  CHECK(written.at("model").at("act") == json({{"constant", "choice:x:y"}}));
  CHECK(written.at("model").at("when") == "kind == 'a'");
  CHECK(written.at("width") == json({{"sample_from", "layers * 2"}}));
  CHECK(written.at("pair") == json::parse(R"({"choice": [["a", 1], ["b", 2]]})"));
  CHECK(written.at("one") == json::parse(R"({"grid_search": [64]})"));
  CHECK(written.at("layers") == 2);
}

TEST_CASE("what makes no search is an error that says why") {
  const auto document = [](const json& space, const TuneConfig& tune) {
    search_document(space, tune, {}, {}, {1, 1}, {"t"});
  };
  CHECK_THROWS_WITH(document(kSpace, {}), "TuneConfig: metric is missing");
  CHECK_THROWS_WITH(document(kSpace, {.metric = "a", .mode = "up"}),
                    "TuneConfig: mode is max or min, not 'up'");
  CHECK_THROWS_WITH(document(json::object(), kConfig),
                    "Tuner: param_space is no object with parameters");
}

TEST_CASE("results are by number, the best is the head's") {
  const json trials = {trial(1, "complete", 0.9), trial(0, "stopped", 0.5),
                       trial(2, "failed", 0.99), trial(3, "complete", "nan"),
                       trial(4, "failed", nullptr)};
  const json document = {{"search", "m-abcdef"},
                         {"state", "succeeded"},
                         {"reason", ""},
                         {"trials", trials},
                         {"best", {{"trial", 1}}}};
  const ResultGrid results = results_of(document);
  REQUIRE(results.size() == 5);
  CHECK(results.search == "m-abcdef");
  CHECK(results[0].state == "stopped");
  CHECK(results[1].params.at("lr") == 0.1);
  CHECK(results[2].metrics.at("accuracy") == 0.99);
  CHECK(std::isnan(*results[3].value));
  CHECK_FALSE(results[4].value);
  CHECK(results.num_errors() == 2);
  CHECK(results.get_best_result().trial == 1);
  json least = document;
  least["best"]["trial"] = 0;
  CHECK(results_of(least).get_best_result().trial == 0);
  CHECK_FALSE(results.error);
  CHECK(results.exit_code == 0);

  json stopped = document;
  stopped["state"] = "stopped";
  stopped["reason"] = "stopped by a person";
  stopped["trials"] = json::array({trial(0, "failed", 0.1)});
  stopped["best"] = nullptr;
  CHECK(results_of(stopped).exit_code == 3);
  CHECK(results_of(stopped).error == "stopped by a person");
  CHECK_THROWS_WITH_AS(results_of(stopped).get_best_result(),
                       "ResultGrid: no trial has reported the metric", Error);
}

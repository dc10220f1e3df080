// Functions of which it is known what their values hang on.
#include "launcher/tune/importance.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "launcher/core/error.hpp"
#include "launcher/tune/random.hpp"
#include "launcher/tune/sampler.hpp"

using namespace dtrain;
using namespace dtrain::tune;
using nlohmann::json;

namespace {

struct Tried {
  SearchSpace space;
  std::vector<Params> trials;
  std::vector<double> values;

  template <typename Function>
  Tried(const json& of, std::size_t count, Function function) {
    Problems problems;
    space = SearchSpace::from_json(of, {"space"}, problems);
    problems.check();
    SamplerSpec spec;
    spec.seed = 3;
    const auto sampler = make_sampler(space, spec, Mode::min);
    for (std::size_t i = 0; i < count; ++i) {
      trials.push_back(sampler->suggest(i));
      values.push_back(function(trials.back()));
    }
  }
  Importances importance() const { return importances(space, trials, values, 1); }
};

double share(const Importances& all, const std::string& name) {
  for (const Importance& each : all.parameters) {
    if (each.name == name) return each.share;
  }
  return -1;
}

double at(const Params& params, const char* name) {
  return params.at(name).get<double>();
}

}  // namespace

TEST_CASE("importance: of a sum each part has its share of the variance") {
  // Variances 16, 4, 1 and 0.
  const Tried tried({{"a", {{"uniform", {0, 1}}}},
                     {"b", {{"uniform", {0, 1}}}},
                     {"c", {{"uniform", {0, 1}}}},
                     {"none", {{"uniform", {0, 1}}}}},
                    400,
                    [](const Params& p) { return 4 * at(p, "a") + 2 * at(p, "b") + at(p, "c"); });
  const Importances found = tried.importance();
  REQUIRE(found.parameters.size() == 4);
  CHECK(found.parameters[0].name == "a");
  CHECK(found.parameters[1].name == "b");
  CHECK(found.parameters[3].name == "none");
  CHECK(share(found, "a") == doctest::Approx(16.0 / 21).epsilon(0.15));
  CHECK(share(found, "b") == doctest::Approx(4.0 / 21).epsilon(0.5));
  CHECK(share(found, "none") < 0.02);
  CHECK(found.explained > 0.9);
  double all = 0;
  for (const Importance& each : found.parameters) all += each.share;
  CHECK(all == doctest::Approx(1));
}

TEST_CASE("importance: a bowl in the logarithm, a category and what is there with one alone") {
  const Tried tried({{"lr", {{"loguniform", {1e-5, 1.0}}}},
                     {"optimizer", {{"choice", {"adam", "sgd", "lion"}}}},
                     {"momentum", {{"uniform", {0, 1}}, {"when", {{"optimizer", "sgd"}}}}},
                     {"seed", {{"randint", {0, 1000}}}},
                     {"fixed", 3}},
                    300, [](const Params& p) {
                      const double by_lr = std::pow(std::log10(at(p, "lr")) + 2.5, 2);
                      const double by_optimizer = p.at("optimizer") == "sgd" ? 4 : 0;
                      return by_lr + by_optimizer +
                             (p.contains("momentum") ? at(p, "momentum") : 0);
                    });
  const Importances found = tried.importance();
  CHECK(found.explained > 0.8);
  CHECK(share(found, "fixed") == -1);
  CHECK(share(found, "seed") < 0.02);
  CHECK(share(found, "lr") > share(found, "seed"));
  CHECK(share(found, "optimizer") + share(found, "momentum") > 0.2);
  CHECK(found.parameters.back().name == "seed");
}

TEST_CASE("importance: one trial that went astray is not all that there is") {
  Tried tried({{"a", {{"uniform", {0, 1}}}}, {"b", {{"uniform", {0, 1}}}}}, 60,
              [](const Params& p) { return at(p, "a"); });
  tried.values[17] = 1e12;
  const Importances found = tried.importance();
  CHECK(found.parameters.front().name == "a");
  CHECK(found.explained > 0.7);
}

TEST_CASE("importance: the same again, whatever is nan, and of chance nothing is explained") {
  Stream chance(1, 1, "noise");
  Tried tried({{"a", {{"uniform", {0, 1}}}}, {"b", {{"choice", {1, 2, 3}}}}}, 200,
              [&](const Params&) { return chance.normal(); });
  tried.values[7] = std::numeric_limits<double>::quiet_NaN();
  tried.values[8] = std::numeric_limits<double>::infinity();
  const Importances first = tried.importance();
  const Importances second = tried.importance();
  CHECK(first.explained < 0.1);
  CHECK(first.explained == second.explained);
  REQUIRE(first.parameters.size() == 2);
  REQUIRE(second.parameters.size() == 2);
  for (std::size_t i = 0; i < first.parameters.size(); ++i) {
    CHECK(first.parameters[i].name == second.parameters[i].name);
    CHECK(first.parameters[i].share == second.parameters[i].share);
  }
}

TEST_CASE("importance: too few trials, and none that differ, are said") {
  const Tried few({{"a", {{"uniform", {0, 1}}}}}, 5, [](const Params& p) { return at(p, "a"); });
  CHECK_THROWS_WITH_AS(few.importance(),
                       "importance wants 8 trials with a value at least; there are 5", Error);
  const Tried same({{"a", 1}}, 20, [](const Params&) { return 1.0; });
  CHECK_THROWS_WITH_AS(same.importance(), "no parameter differs between the trials", Error);
  const Tried flat({{"a", {{"uniform", {0, 1}}}}}, 20, [](const Params&) { return 1.0; });
  CHECK(flat.importance().explained == 0);
}

TEST_CASE("importance: ten thousand trials, and a thousand parameters, take seconds at most" *
          doctest::test_suite("workload")) {
  json of = json::object();
  for (int i = 0; i < 1000; ++i) of["p" + std::to_string(i)] = {{"uniform", {0, 1}}};
  const Tried wide(of, 300, [](const Params& p) { return at(p, "p17"); });
  CHECK(wide.importance().parameters.front().name == "p17");
  const Tried deep({{"a", {{"uniform", {0, 1}}}}, {"b", {{"uniform", {0, 1}}}}}, 10'000,
                   [](const Params& p) { return at(p, "b"); });
  CHECK(deep.importance().parameters.front().name == "b");
}

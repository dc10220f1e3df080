#include "launcher/tune/space.hpp"

#include <cmath>

#include "launcher/core/error.hpp"
#include "tests/launcher/tune/support.hpp"

using namespace dtrain;
using namespace dtrain::tune;
using namespace dtrain::tune::test;

namespace {

std::string problems_of_space(std::string_view json) {
  Problems problems;
  SearchSpace::from_json(nlohmann::json::parse(json), {"space"}, problems);
  return lines(problems);
}

Params drawn(const SearchSpace& space, std::uint64_t trial, const Params& fixed = {}) {
  return space.fill(fixed, 1, trial, [&](const Parameter& parameter, const Params&) {
    return parameter.domain.at(Stream(1, trial, parameter.name).uniform());
  });
}

Domain domain_of(std::string_view line) {
  Problems problems;
  Domain domain = domain_from_line(line, {"p"}, problems);
  problems.check();
  return domain;
}

}  // namespace

TEST_CASE("domains take their values from where Ray's do") {
  CHECK(domain_of("uniform:2:4").at(0.25) == 2.5);
  CHECK(domain_of("loguniform:1e-4:1e-1").at(0).get<double>() == doctest::Approx(1e-4));
  CHECK(domain_of("loguniform:1e-4:1").at(0.5).get<double>() == doctest::Approx(0.01));
  CHECK(domain_of("quniform:0:1:0.1").at(0.3) == 0.3);  // not 0.30000000000000004
  CHECK(domain_of("quniform:0.05:0.95:0.1").at(0) == 0.1);
  CHECK(domain_of("quniform:0:100:5").at(0.999) == 100);
  CHECK(domain_of("randint:1:5").at(0) == 1);
  CHECK(domain_of("randint:1:5").at(0.9999999) == 4);
  CHECK(domain_of("randint:5").at(0) == 0);
  CHECK(domain_of("randint:1:5").at(0.5).is_number_integer());
  CHECK(domain_of("qrandint:8:128:8").at(0.9999999) == 128);
  CHECK(domain_of("qrandint:1:5:1").at(0.9999999) == 4);
  CHECK(domain_of("lograndint:1:1000").at(0.5) == 31);
  CHECK(domain_of("qlograndint:16:1024:16").at(0) == 16);
  CHECK(domain_of("randn:10:2").at(0.5) == 10);
  CHECK(domain_of("qrandn:10:2:0.5").at(0.6) == 10.5);
  CHECK(domain_of("randn:10:2").at(0).get<double>() > -10);
  CHECK(domain_of("choice:a:2:true").at(0.5) == 2);
  CHECK(domain_of("choice:a:2:true").at(0.99) == true);
  // Each of the values as often as the others.
  std::map<int, int> counts;
  for (int i = 0; i < 1000; ++i) ++counts[domain_of("qrandint:0:30:10").at(i / 1000.0).get<int>()];
  CHECK(counts == std::map<int, int>{{0, 250}, {10, 250}, {20, 250}, {30, 250}});
}

TEST_CASE("a line is a domain, or a constant as it stands") {
  CHECK(to_json(domain_of("adam")) == nlohmann::json::parse(R"({"constant": "adam"})"));
  CHECK(to_json(domain_of("host:80")) == nlohmann::json::parse(R"({"constant": "host:80"})"));
  CHECK(to_json(domain_of("3.5")) == 3.5);
  CHECK(domain_of("sample_from:a > 1 ? 2 : 3").expression->text() == "a > 1 ? 2 : 3");
  CHECK(to_json(domain_of("loguniform:1e-4:1e-1")).dump() == R"({"loguniform":[0.0001,0.1]})");
  CHECK_THROWS_WITH_AS(domain_of("lognuiform:1:2"), "p: \"lognuiform\" is not known here", Error);
  CHECK(param_from_flag("lr=uniform:0:1").second.dump() == R"({"uniform":[0.0,1.0]})");
  CHECK(param_from_flag("a.b={\"choice\": [1]}").first == "a.b");
  CHECK_THROWS_AS(param_from_flag("lr"), Error);
  CHECK_THROWS_AS(param_from_flag("1x=3"), Error);
}

TEST_CASE("spaces are nested, conditional and computed") {
  const SearchSpace space = space_of(R"({
    "epochs": 10, "lr": {"loguniform": [1e-4, 1e-1]},
    "optimizer": {"choice": ["sgd", "adam"]},
    "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
    "adam": {"when": "optimizer == 'adam'", "beta": {"uniform": [0.8, 0.999]},
             "eps": {"sample_from": "adam.beta > 0.9 ? 1e-8 : 1e-6"}},
    "model": {"layers": "randint:1:9", "width": {"sample_from": "model.layers * 32"}}})");
  int sgd = 0;
  for (std::uint64_t trial = 0; trial < 100; ++trial) {
    const Params params = drawn(space, trial);
    CHECK(params.at("epochs") == 10);
    const bool is_sgd = params.at("optimizer") == "sgd";
    sgd += is_sgd ? 1 : 0;
    CHECK(params.contains("momentum") == is_sgd);
    CHECK(params.contains("adam.beta") != is_sgd);
    CHECK(params.contains("adam.eps") != is_sgd);
    CHECK(params.at("model.width").get<int>() == 32 * params.at("model.layers").get<int>());
    CHECK(nested(params)["model"]["layers"] == params.at("model.layers"));
    CHECK(drawn(space, trial) == params);
  }
  CHECK((sgd > 30 && sgd < 70));
  CHECK(drawn(space, 1, {{"optimizer", "adam"}, {"momentum", 0.7}}).contains("momentum") == false);
  // Written and read it is the same.
  const SearchSpace again = space_of(space.to_json().dump());
  CHECK(again.to_json() == space.to_json());
  CHECK(drawn(again, 3) == drawn(space, 3));
}

TEST_CASE("a parameter is there when all of its conditions hold") {
  const SearchSpace space = space_of(R"({
    "optimizer": {"choice": ["sgd", "adam", "lion"]}, "nesterov": {"choice": [true, false]},
    "layers": {"randint": [1, 5]},
    "values": {"uniform": [0, 1], "when": {"optimizer": ["sgd", "adam"], "nesterov": true}},
    "list": {"uniform": [0, 1], "when": ["layers > 2", {"optimizer": "sgd"}]},
    "group": {"when": "layers < 4", "deep": {"uniform": [0, 1], "when": "nesterov"}},
    "of_list": {"constant": 3, "when": "list > 0.5"}})");
  const SearchSpace again = space_of(space.to_json().dump());
  std::map<std::string, int> counts;
  for (std::uint64_t trial = 0; trial < 300; ++trial) {
    const Params params = drawn(space, trial);
    const std::string optimizer = params.at("optimizer");
    const bool nesterov = params.at("nesterov");
    const int layers = params.at("layers");
    CHECK(params.contains("values") == (optimizer != "lion" && nesterov));
    CHECK(params.contains("list") == (layers > 2 && optimizer == "sgd"));
    CHECK(params.contains("group.deep") == (layers < 4 && nesterov));
    // One of what is not there does not hold.
    CHECK(params.contains("of_list") == (params.contains("list") && params.at("list") > 0.5));
    CHECK(drawn(again, trial) == params);
    for (const auto& [name, value] : params) ++counts[name];
  }
  for (const char* name : {"values", "list", "group.deep", "of_list"}) {
    CAPTURE(name);
    CHECK((counts[name] > 10 && counts[name] < 290));
  }
}

TEST_CASE("a failed expression names its parameter") {
  const SearchSpace space = space_of(R"({"a": 0, "b": {"sample_from": "1 / a"}})");
  try {
    drawn(space, 0);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "division by zero at column 3, while computing the parameter b");
  }
}

TEST_CASE("all that is wrong with a space is said at once") {
  CHECK(problems_of_space(R"({"a": {"uniform": [2, 1]}, "b": {"choice": []}, "c": {"uniform": [1]},
    "d": {"loguniform": [0, 1]}, "e": {"sample_from": "1 +"}, "f": {"randint": [0, 1.5]},
    "g": {"unifrom": [0, 1]}, "h": {"uniform": [0, 1], "choice": [1]}, "1i": 3,
    "j": {"quniform": [0.1, 0.2, 5]}, "k": {}, "l": {"choice": [1, 2, 1.0]},
    "m": {"randn": [0, 0]}, "n": {"deep": {"uniform": ["x", 1]}}})") ==
        "space.1i: is no name of a parameter\n"
        "space.a.uniform: low must be below high, not 2.0 and 1.0\n"
        "space.b.choice: must be a list of 1 to 1000 values, not []\n"
        "space.c.uniform: must be [low, high], not [1]\n"
        "space.d.loguniform: low must be above 0, for a logarithm\n"
        "space.e.sample_from: a value is missing at column 4\n"
        "space.f.randint: 1.5 is not a whole number\n"
        "space.g: \"unifrom\" is not known here\n"
        "space.h: has choice, uniform; one domain is wanted, and when\n"
        "space.j.quniform: between 0.1 and 0.2 there is no multiple of 5.0, or too many\n"
        "space.k: is empty\n"
        "space.l.choice[2]: 1.0 is there twice\n"
        "space.m.randn: the standard deviation must be above 0\n"
        "space.n.deep.uniform: must be [low, high], not [\"x\",1]\n");
  CHECK(problems_of_space(R"([1])") == "space: must be an object of parameters, not [1]\n");
  CHECK(problems_of_space(R"({"layers": 3, "a": {"sample_from": "layer * 2"}})") ==
        "space.a: there is no parameter \"layer\"\n");
  CHECK(
      problems_of_space(R"({"a": {"sample_from": "b"}, "b": {"sample_from": "c + a"}, "c": 1})") ==
      "space: parameters that need each other: a, b, a\n");
  CHECK(problems_of_space(R"({"a": {"uniform": [0, 1], "when": "a > 1"}})") ==
        "space: parameters that need each other: a, a\n");
  CHECK(problems_of_space(R"({"a": {"b": 1}, "a.b": 2})") ==
        "space.a.b: is there twice, nested and with a dot\n");
  CHECK(problems_of_space(R"({"a": 1, "b": {"uniform": [0, 1], "when": "uniform(0, 1) > a"}})") ==
        "space.b.when: a condition cannot draw numbers\n");
}

TEST_CASE("a space has limits") {
  nlohmann::json wide = nlohmann::json::object();
  for (int i = 0; i < 1'000; ++i) wide["p" + std::to_string(i)] = 1;
  CHECK(problems_of_space(wide.dump()).empty());
  wide["q0"] = wide["q1"] = 1;
  CHECK(problems_of_space(wide.dump()) == "space.q0: a space has at most 1000 parameters\n");

  const auto nested_in = [](int spaces) {
    nlohmann::json json = 1;
    for (int i = 0; i <= spaces; ++i) {
      nlohmann::json outer = nlohmann::json::object();
      outer["a"] = std::move(json);
      json = std::move(outer);
    }
    return json.dump();
  };
  CHECK(problems_of_space(nested_in(16)).empty());
  const std::string deep = problems_of_space(nested_in(17));
  CHECK(deep.find(".a: is nested deeper than 16\n") != std::string::npos);

  nlohmann::json grid = nlohmann::json::object();
  for (const char* name : {"a", "b", "c"}) {
    for (int i = 0; i < 100; ++i) grid[name]["grid_search"].push_back(i);
  }
  CHECK(space_of(grid.dump()).grid_size() == 1'000'000);
  grid["d"]["grid_search"] = {1, 2};
  CHECK(problems_of_space(grid.dump()) ==
        "space.d: grid_search makes more than 1000000 combinations\n");
}

TEST_CASE("a grid is each combination once, the first name fastest") {
  const SearchSpace space =
      space_of(R"({"a": {"grid_search": [1, 2]}, "b": {"grid_search": ["x", "y", "z"]}})");
  REQUIRE(space.grid_size() == 6);
  CHECK(space.grid_point(0) == Params{{"a", 1}, {"b", "x"}});
  CHECK(space.grid_point(1) == Params{{"a", 2}, {"b", "x"}});
  CHECK(space.grid_point(5) == Params{{"a", 2}, {"b", "z"}});
  CHECK(space_of("{}").grid_size() == 1);
  // What is not there makes no combinations of its own.
  const SearchSpace some = space_of(R"({"kind": {"grid_search": ["sgd", "adam"]},
    "momentum": {"grid_search": [0.5, 0.9, 0.99], "when": {"kind": "sgd"}}})");
  CHECK(some.grid_size() == 4);
  CHECK(problems_of_space(R"({"a": {"uniform": [0, 1]},
    "b": {"grid_search": [1, 2], "when": "a > 0.5"}})") ==
        "space.b: a grid_search can depend on grid_search and constants alone\n");
  CHECK(problems_of_space(R"({"a": {"randint": [0, 9]}, "c": {"constant": 1, "when": {"a": 3}},
    "b": {"grid_search": [1, 2], "when": {"c": 1}}})") ==
        "space.b: a grid_search can depend on grid_search and constants alone\n");
}

TEST_CASE("what a grid hangs on is found in one pass, however it is entangled") {
  nlohmann::json space = nlohmann::json::object();
  space["p0"]["grid_search"] = {1, 2};
  space["p1"]["grid_search"] = {1, 2};
  for (int i = 2; i < 80; ++i) {  // each on the two before it
    nlohmann::json& each = space["p" + std::to_string(i)];
    each["constant"] = 1;
    each["when"]["p" + std::to_string(i - 1)] = 1;
    each["when"]["p" + std::to_string(i - 2)] = 1;
  }
  space["last"]["grid_search"] = {1, 2};
  space["last"]["when"]["p79"] = 1;
  Problems problems;
  const SearchSpace read = SearchSpace::from_json(space, {"space"}, problems);
  problems.check();
  CHECK(read.grid_size() == 5);  // last is there where all ones are, for one of four
}

TEST_CASE("given points are checked against the space") {
  const SearchSpace space = space_of(R"({"lr": {"loguniform": [1e-4, 0.1]}, "epochs": 10,
    "model": {"layers": {"randint": [1, 9]}}, "g": {"grid_search": [1, 2]},
    "q": {"quniform": [0, 1, 0.1]}})");
  Problems problems;
  CHECK(space.point_from_json(
            nlohmann::json::parse(R"({"model": {"layers": 3}, "lr": 0.01, "g": 2, "q": 0.3})"),
            {"points_to_evaluate", "[0]"},
            problems) == Params{{"g", 2}, {"lr", 0.01}, {"model.layers", 3}, {"q", 0.3}});
  CHECK(problems.empty());
  space.point_from_json(
      nlohmann::json::parse(R"({"model.layers": 9, "lr": 1, "epochs": 11, "layer": 3, "q": 0.25})"),
      {"points_to_evaluate", "[1]"}, problems);
  CHECK(lines(problems) ==
        "points_to_evaluate[1].layer: is no parameter of the space\n"
        "points_to_evaluate[1].epochs: 11 is not of 10\n"
        "points_to_evaluate[1].lr: 1 is not of {\"loguniform\":[0.0001,0.1]}\n"
        "points_to_evaluate[1].model.layers: 9 is not of {\"randint\":[1,9]}\n"
        "points_to_evaluate[1].q: 0.25 is not of {\"quniform\":[0.0,1.0,0.1]}\n"
        "points_to_evaluate[1].g: is missing, and a grid has no value of its own\n");
}

#include "launcher/tune/sampler.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"
#include "launcher/tune/sobol.hpp"
#include "tests/launcher/tune/functions.hpp"
#include "tests/launcher/tune/support.hpp"

using namespace dtrain;
using namespace dtrain::tune;
using namespace dtrain::tune::test;

namespace {

SamplerSpec sampler_spec(std::string_view json, const SearchSpace& space) {
  Problems problems;
  const auto spec =
      sampler_spec_from_json(nlohmann::json::parse(json), space, {"search"}, problems);
  problems.check();
  return spec;
}

std::string sampler_problems(std::string_view json, const SearchSpace& space) {
  Problems problems;
  sampler_spec_from_json(nlohmann::json::parse(json), space, {"search"}, problems);
  return lines(problems);
}

// P(a value of `first` is below one of `second`), ties half, and its one-sided 95 % upper bound:
// Mann and Whitney's estimate with DeLong's variance, normal.
struct Better {
  double estimate;
  double bound;
};
Better better(const std::vector<double>& first, const std::vector<double>& second) {
  const auto part_below = [](double a, double b) { return a < b ? 1.0 : a == b ? 0.5 : 0.0; };
  std::vector<double> of_first, of_second;
  for (const double a : first) {
    double sum = 0;
    for (const double b : second) sum += part_below(a, b);
    of_first.push_back(sum / static_cast<double>(second.size()));
  }
  for (const double b : second) {
    double sum = 0;
    for (const double a : first) sum += part_below(a, b);
    of_second.push_back(sum / static_cast<double>(first.size()));
  }
  double estimate = 0;
  for (const double each : of_first) estimate += each / static_cast<double>(first.size());
  const auto variance = [&](const std::vector<double>& parts) {
    double sum = 0;
    for (const double each : parts) sum += (each - estimate) * (each - estimate);
    return sum / static_cast<double>(parts.size() - 1) / static_cast<double>(parts.size());
  };
  return {estimate, estimate + 1.6449 * std::sqrt(variance(of_first) + variance(of_second))};
}

}  // namespace

TEST_CASE("what search says is read, with all that is wrong") {
  const SearchSpace space = space_of(R"({"a": {"uniform": [0, 1]}, "g": {"grid_search": [1, 2]}})");
  CHECK(sampler_spec("null", space).algorithm == SamplerSpec::Algorithm::random);
  CHECK(sampler_spec("\"sobol\"", space).algorithm == SamplerSpec::Algorithm::sobol);
  const SamplerSpec spec = sampler_spec(
      R"({"algorithm": "random", "seed": 7, "points_to_evaluate": [{"g": 2}, {"a": 0.5, "g": 1}]})",
      space);
  CHECK(spec.seed == 7);
  CHECK(to_json(sampler_spec(to_json(spec).dump(), space)) == to_json(spec));
  CHECK(trial_count(space, spec, 5) == 2 + 3 * 2);
  CHECK(trial_count(space, spec, 1) == 2);
  CHECK(sampler_problems(R"({"algorithm": "tpe", "seeds": 1, "n_startup_trials": -1})", space) ==
        "search.n_startup_trials: must be a whole number from 0 to 100000, not -1\n"
        "search.seeds: is not known here\n"
        "search: tpe does not take grid_search, which g is\n");
  CHECK(sampler_problems("\"grid\"", space) ==
        "search: grid has no value for a, which is uniform\n");
  CHECK(sampler_problems("\"bayes\"", space) ==
        "search.algorithm: must be one of random, grid, sobol, tpe, not \"bayes\"\n");
  CHECK(sampler_problems("[1]", space) == "search: must be an object with keys, not [1]\n");
}

TEST_CASE("points come first, then each sample for each of the grid") {
  const SearchSpace space = space_of(R"({"a": {"uniform": [0, 1]}, "g": {"grid_search": [1, 2]}})");
  const auto sampler = make_sampler(
      space, sampler_spec(R"({"seed": 3, "points_to_evaluate": [{"g": 2}]})", space), Mode::min);
  CHECK(sampler->suggest(0).at("g") == 2);
  CHECK(sampler->suggest(1).at("g") == 1);
  CHECK(sampler->suggest(2).at("g") == 2);
  CHECK(sampler->suggest(3).at("g") == 1);
  CHECK(sampler->suggest(1).at("a") != sampler->suggest(2).at("a"));
  CHECK(sampler->suggest(9'999) == sampler->suggest(9'999));
}

TEST_CASE("Sobol's points are SciPy's") {
  const nlohmann::json data = recorded("sobol");
  const Sobol plain(Sobol::kMostDimensions, std::span<const Sobol::Scramble>());
  const auto same = [](const Sobol& ours, const nlohmann::json& points, std::uint64_t from) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      for (std::size_t d = 0; d < points[i].size(); ++d) {
        wrong += points[i][d].get<std::uint32_t>() == ours.at(from + i, d) ? 0 : 1;
      }
    }
    return wrong == 0;
  };
  CHECK(data["points"].size() == 64);
  CHECK(data["points"][0].size() == 128);
  CHECK(data["from_10000"].size() == 4);
  CHECK(data["from_10000"][0].size() == 128);
  CHECK(same(plain, data["points"], 0));
  CHECK(same(plain, data["from_10000"], 10'000));

  // Scrambled by the bits that SciPy drew.
  std::vector<Sobol::Scramble> scrambles;
  for (std::size_t d = 0; d < data["shift_bits"].size(); ++d) {
    Sobol::Scramble scramble;
    const auto shift = data["shift_bits"][d].get<std::string>();
    for (std::size_t i = 0; i < 30; ++i) {
      scramble.shift |= static_cast<std::uint32_t>(shift[i] - '0') << i;
      const auto row = data["matrix_bits"][d][i].get<std::string>();
      scramble.rows[i] = std::uint32_t{1} << (29 - i);
      for (std::size_t k = 0; k < i; ++k) {
        scramble.rows[i] |= static_cast<std::uint32_t>(row[k] - '0') << (29 - k);
      }
    }
    scrambles.push_back(scramble);
  }
  CHECK(data["scrambled"].size() == 64);
  CHECK(data["scrambled"][0].size() == scrambles.size());
  CHECK(scrambles.size() == 5);
  CHECK(same(Sobol(scrambles.size(), scrambles), data["scrambled"], 0));
}

TEST_CASE("our scrambled points keep what makes Sobol's sequence one") {
  const Sobol ours(20, std::uint64_t{5});
  CHECK(ours.at(0, 0) != Sobol(20, std::uint64_t{6}).at(0, 0));
  for (std::size_t d = 0; d < 20; ++d) {
    std::vector<int> strata(256);
    for (std::uint64_t i = 0; i < 256; ++i) ++strata[ours.at(i, d) >> 22];
    CHECK(std::all_of(strata.begin(), strata.end(), [](int count) { return count == 1; }));
  }
  const SearchSpace space = space_of(R"({"a": {"randint": [0, 16]}, "b": {"randn": [0, 1]},
    "c": {"choice": [1, 2], "when": "a > 7"}})");
  const auto sampler = make_sampler(space, sampler_spec("\"sobol\"", space), Mode::min);
  std::vector<int> counts(16);
  for (TrialNumber trial = 0; trial < 64; ++trial) {
    const Params params = sampler->suggest(trial);
    ++counts[params.at("a").get<std::size_t>()];
    CHECK(std::isfinite(params.at("b").get<double>()));
    CHECK(params.contains("c") == (params.at("a") > 7));
  }
  CHECK(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 4; }));
}

TEST_CASE("TPE finds at least as good values as Optuna" * doctest::test_suite("workload")) {
  const nlohmann::json data = recorded("tpe");
  REQUIRE(data["of"] == "optuna 5.0.0");
  for (const Function& function : functions()) {
    CAPTURE(std::string(function.name));
    const auto theirs = data["best"][function.name].get<std::vector<double>>();
    REQUIRE(theirs.size() == 30);
    std::vector<double> ours;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      ours.push_back(best_found(function, R"("tpe")", seed, data["trials"].get<std::uint64_t>()));
    }
    const Better optuna = better(theirs, ours);
    MESSAGE(std::string(function.name)
            << ": P(Optuna better) " << optuna.estimate << ", at most " << optuna.bound);
    CHECK(optuna.bound < 0.65);
  }
}

TEST_CASE("TPE takes every kind of domain, and told the same suggests the same") {
  const SearchSpace space = space_of(R"({
    "u": {"uniform": [0, 1]}, "qu": {"quniform": [0, 1, 0.25]}, "lu": {"loguniform": [1e-5, 1]},
    "qlu": {"qloguniform": [0.1, 10, 0.1]}, "rn": {"randn": [5, 2]}, "qrn": {"qrandn": [5, 2, 1]},
    "ri": {"randint": [0, 10]}, "qri": {"qrandint": [0, 100, 10]},
    "lri": {"lograndint": [1, 1000]}, "qlri": {"qlograndint": [8, 512, 8]},
    "one": {"randint": [3, 4]}, "c": {"choice": ["a", "b", [1, 2], {"deep": true}]},
    "double": {"sample_from": "u * 2"}, "only": {"uniform": [0, 1], "when": {"c": "b"}}})");
  const SamplerSpec spec = sampler_spec(R"({"algorithm": "tpe", "seed": 9})", space);
  const auto value = [](const Params& params) {
    return std::abs(params.at("u").get<double>() - 0.7) +
           std::abs(params.at("rn").get<double>() - 6) + (params.at("c") == "b" ? 0 : 1) +
           std::abs(params.at("lri").get<double>() - 100) / 100;
  };
  for (const Mode mode : {Mode::min, Mode::max}) {
    const auto sampler = make_sampler(space, spec, mode);
    const auto again = make_sampler(space, spec, mode);
    std::vector<std::pair<TrialNumber, Params>> running;
    std::vector<double> late;
    for (TrialNumber trial = 0; trial < 120; ++trial) {
      const Params params = sampler->suggest(trial);
      REQUIRE(again->suggest(trial) == params);
      Problems problems;
      space.point_from_json(nlohmann::json(params), {"point"}, problems);
      REQUIRE(lines(problems).empty());
      sampler->started(trial, params);
      again->started(trial, params);
      running.emplace_back(trial, params);
      if (running.size() < 4) continue;  // four side by side
      const auto [ended, its] = running[static_cast<std::size_t>(trial % 4)];
      running.erase(running.begin() + static_cast<long>(trial % 4));
      Outcome outcome{Outcome::State::complete, (mode == Mode::min ? 1 : -1) * value(its), 10};
      if (ended % 10 == 3) outcome.state = Outcome::State::failed;
      if (ended % 10 == 4) outcome = {Outcome::State::stopped, outcome.value, 2};
      if (ended % 10 == 5) outcome.value = NAN;
      sampler->ended(ended, outcome);
      again->ended(ended, outcome);
      if (trial >= 90) late.push_back(value(its));
    }
    std::sort(late.begin(), late.end());
    CHECK(late[late.size() / 2] < 1.6);  // at random it is 3.3
  }
}

TEST_CASE("TPE learns from an earlier search, and passes over what does not fit") {
  const SearchSpace space = space_of(R"({"x": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}})");
  const SamplerSpec spec = sampler_spec(R"({"algorithm": "tpe", "seed": 1})", space);
  const auto warm = make_sampler(space, spec, Mode::max);
  for (int i = 0; i < 50; ++i) {
    const double x = i / 50.0;
    warm->learn({{"x", x}, {"y", 1 - x}}, {Outcome::State::complete, -std::abs(x - 0.3), 1});
    warm->learn({{"x", 7}, {"z", 1}}, {Outcome::State::complete, 100, 1});
  }
  double away = 0;
  for (TrialNumber trial = 0; trial < 20; ++trial) {
    away += std::abs(warm->suggest(trial).at("x").get<double>() - 0.3) / 20;
  }
  CHECK(away < 0.15);  // 0.29 at random
}

TEST_CASE("the ten thousandth suggestion is as quick as the thousandth") {
  const SearchSpace space = space_of(functions()[1].space);
  const auto sampler =
      make_sampler(space, sampler_spec(R"({"algorithm": "tpe", "seed": 1})", space), Mode::min);
  const auto random = make_sampler(space, sampler_spec(R"({"seed": 1})", space), Mode::min);
  const auto seconds_for = [&](TrialNumber trial) {
    double least = 1e9;  // of several: others have the processor too
    for (int i = 0; i < 7; ++i) {
      const auto start = std::chrono::steady_clock::now();
      sampler->suggest(trial);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      least = std::min(least, took.count());
    }
    return least;
  };
  double early = 0;
  for (TrialNumber trial = 0; trial < 10'000; ++trial) {
    if (trial == 1'100) early = seconds_for(trial);
    const Params params = random->suggest(trial);
    sampler->started(trial, params);
    sampler->ended(trial, {Outcome::State::complete, hartmann6(params), 1});
  }
  const double late = seconds_for(10'000);
  MESSAGE("a suggestion takes " << early * 1e3 << " ms after 1,100 trials, " << late * 1e3
                                << " ms after 10,000");
  CHECK(late < 5 * early + 0.02);
}

// As a head does it: what was told is kept, and after a crash told again.
TEST_CASE("a search that is told again what it was told goes on the same") {
  const SearchSpace space = space_of(R"({"x": {"uniform": [0, 1]}, "y": {"loguniform": [1e-3, 1]},
    "kind": {"choice": ["a", "b"]}, "z": {"randint": [0, 9], "when": {"kind": "b"}}})");
  struct Told {
    enum { started, reported, checkpointed, ended, resumed } what;
    TrialNumber trial;
    Params params;
    double time;
    double value;
    bool stopped;
  };
  struct Search {
    std::unique_ptr<Sampler> sampler;
    std::unique_ptr<Scheduler> scheduler;
    std::vector<Told> told;

    std::string tell(const Told& event) {
      told.push_back(event);
      switch (event.what) {
        case Told::started:
          sampler->started(event.trial, event.params);
          scheduler->added(event.trial, event.params);
          return "";
        case Told::reported: {
          const Decision decision = scheduler->reported({event.trial, event.time, event.value});
          return std::string(to_string(decision.action)) + ": " + decision.reason +
                 (decision.exploit ? nlohmann::json(decision.exploit->params).dump() : "");
        }
        case Told::checkpointed:
          scheduler->checkpointed(event.trial, event.time);
          return "";
        case Told::ended:
          sampler->ended(event.trial,
                         {event.stopped ? Outcome::State::stopped : Outcome::State::complete,
                          event.value, event.time});
          scheduler->ended(event.trial);
          return "";
        case Told::resumed: {
          const auto next = scheduler->resume();
          return next ? std::to_string(next->trial) + " " + next->reason : "none";
        }
      }
      return "";
    }
  };
  for (const char* scheduling :
       {R"({"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "brackets": 2})",
        R"({"algorithm": "asha", "max_t": 9, "reduction_factor": 3, "form": "promote"})",
        R"({"algorithm": "median_stopping"})",
        R"({"algorithm": "pbt", "perturbation_interval": 2})"}) {
    CAPTURE(std::string(scheduling));
    const auto fresh = [&] {
      return Search{
          make_sampler(space, sampler_spec(R"({"algorithm": "tpe", "seed": 4})", space), Mode::max),
          scheduler_of(scheduling, Mode::max, space, 40),
          {}};
    };
    Search search = fresh();
    Stream world(8, 8, "world");
    std::map<TrialNumber, double> at;  // of those that run
    std::set<TrialNumber> paused;
    TrialNumber next = 0;
    std::size_t crashes = 0;
    for (int step = 0; step < 600; ++step) {
      if (world.below(12) == 0) {  // kill -9
        Search again = fresh();
        for (const Told& event : std::vector<Told>(search.told)) again.tell(event);
        CHECK(again.sampler->suggest(next) == search.sampler->suggest(next));
        CHECK(again.scheduler->state() == search.scheduler->state());
        // What both are told from here on, they answer alike.
        Search other = fresh();
        for (const Told& event : std::vector<Told>(search.told)) other.tell(event);
        for (const auto& [trial, time] : at) {
          const Told event{Told::reported, trial, {}, time + 1, world.uniform(), false};
          CHECK(again.tell(event) == other.tell(event));
        }
        search = fresh();
        const std::vector<Told> all(other.told.begin(),
                                    other.told.end() - static_cast<long>(at.size()));
        for (const Told& event : all) search.tell(event);
        ++crashes;
      }
      if (at.size() < 4) {
        const std::string resumed = search.tell({Told::resumed, 0, {}, 0, 0, false});
        if (resumed != "none") {
          const TrialNumber trial = std::stoull(resumed);
          REQUIRE(paused.erase(trial) == 1);
          at[trial] = 0;  // it goes on from somewhere: it reports again what is known
        } else if (next < 40) {
          search.tell({Told::started, next, search.sampler->suggest(next), 0, 0, false});
          at[next++] = 0;
        }
      }
      if (at.empty()) break;
      auto running = at.begin();
      std::advance(running, static_cast<long>(world.below(at.size())));
      const TrialNumber trial = running->first;
      const double time = ++running->second;
      if (world.below(2) == 0) search.tell({Told::checkpointed, trial, {}, time, 0, false});
      const double value = world.uniform();
      const std::string answer = search.tell({Told::reported, trial, {}, time, value, false});
      if (answer.starts_with("pause") || answer.find("others wait") != std::string::npos) {
        paused.insert(trial);
        at.erase(running);
      } else if (answer.starts_with("stop") || time >= 12) {
        search.tell({Told::ended, trial, {}, time, value, answer.starts_with("stop")});
        at.erase(running);
      }
    }
    CHECK(next > 10);
    CHECK(crashes > 5);
  }
}

// What was recorded with one build must be what another one decides: a change here breaks searches
// that are under way.
TEST_CASE("suggestions are the same on every machine, and for ever") {
  const SearchSpace space = space_of(R"j({"u": {"uniform": [0, 1]}, "lu": {"loguniform": [1e-5, 1]},
    "rn": {"randn": [5, 2]}, "ri": {"randint": [0, 1000]}, "qlri": {"qlograndint": [8, 512, 8]},
    "c": {"choice": ["a", "b", "c"]}, "s": {"sample_from": "exp(u) + uniform(0, 1)"},
    "only": {"quniform": [0, 1, 0.1], "when": {"c": "b"}}})j");
  const auto sum_of = [&](const char* search) {
    const auto sampler = make_sampler(space, sampler_spec(search, space), Mode::max);
    std::string all;
    for (TrialNumber trial = 0; trial < 60; ++trial) {
      const Params params = sampler->suggest(trial);
      all += nlohmann::json(params).dump();
      sampler->started(trial, params);
      const double away = params.at("lu").get<double>() - params.at("u").get<double>();
      sampler->ended(trial, {Outcome::State::complete, -away * away, 1});
    }
    return short_sum(all);
  };
  CHECK(sum_of(R"({"algorithm": "random", "seed": 11})") == "9f93c508100a6332");
  CHECK(sum_of(R"({"algorithm": "sobol", "seed": 11})") == "56ae7dd863383667");
  CHECK(sum_of(R"({"algorithm": "tpe", "seed": 11})") == "ff547c6aa7dbb073");
}

TEST_CASE("tpe draws so much for a suggestion that it takes parts of a second, however large" *
          doctest::test_suite("workload")) {
  nlohmann::json json = nlohmann::json::object();
  for (int i = 0; i < 1'000; ++i) {
    json["p" + std::to_string(i)] = nlohmann::json::parse(R"({"uniform": [0, 1]})");
  }
  const SearchSpace wide = space_of(json.dump());
  CHECK(sampler_problems(R"({"algorithm": "tpe"})", wide) ==
        "search.n_ei_candidates: 64 candidates of 1000 parameters are more than 16384 draws\n");
  CHECK(sampler_problems(R"({"algorithm": "tpe", "n_ei_candidates": 16})", wide).empty());
  CHECK(sampler_problems("\"random\"", wide).empty());
  const SearchSpace narrow = space_of(R"({"a": {"uniform": [0, 1]}, "b": {"uniform": [0, 1]}})");
  CHECK(sampler_problems(R"({"algorithm": "tpe", "n_ei_candidates": 8192})", narrow).empty());
  CHECK_FALSE(sampler_problems(R"({"algorithm": "tpe", "n_ei_candidates": 8193})", narrow).empty());

  for (const bool is_wide : {false, true}) {
    const SearchSpace& space = is_wide ? wide : narrow;
    const char* json_of = is_wide ? R"({"algorithm": "tpe", "n_ei_candidates": 16})"
                                  : R"({"algorithm": "tpe", "n_ei_candidates": 8192})";
    const auto tpe = make_sampler(space, sampler_spec(json_of, space), Mode::max);
    for (TrialNumber trial = 0; trial < 1'100; ++trial) {
      Params params;
      for (const Parameter& each : space.parameters()) {
        params[each.name] = Stream(1, trial, each.name).uniform();
      }
      tpe->started(trial, params);
      tpe->ended(trial, {Outcome::State::complete, Stream(2, trial, "value").uniform(), 1});
    }
    const auto start = std::chrono::steady_clock::now();
    CHECK(tpe->suggest(1'100).size() == space.parameters().size());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    MESSAGE("tpe, wide: " << is_wide << ", ms: " << took.count());
  }
}

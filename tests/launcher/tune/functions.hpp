#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/sampler.hpp"
#include "tests/launcher/tune/support.hpp"

// The functions that record.py lets Optuna minimise, and one search of ours over them.
namespace dtrain::tune::test {

struct Function {
  const char* name;
  const char* space;
  double (*value)(const Params&);
};

inline double branin(const Params& params) {
  const double x = params.at("x").get<double>();
  const double y = params.at("y").get<double>();
  constexpr double kPi = std::numbers::pi;
  const double bend = y - 5.1 / (4 * kPi * kPi) * x * x + 5 / kPi * x - 6;
  return bend * bend + 10 * (1 - 1 / (8 * kPi)) * std::cos(x) + 10;
}

inline double hartmann6(const Params& params) {
  constexpr std::array kAlpha = {1.0, 1.2, 3.0, 3.2};
  constexpr double kA[4][6] = {{10, 3, 17, 3.5, 1.7, 8},
                               {0.05, 10, 17, 0.1, 8, 14},
                               {3, 3.5, 1.7, 10, 17, 8},
                               {17, 8, 0.05, 10, 0.1, 14}};
  constexpr double kP[4][6] = {{1312, 1696, 5569, 124, 8283, 5886},
                               {2329, 4135, 8307, 3736, 1004, 9991},
                               {2348, 1451, 3522, 2883, 3047, 6650},
                               {4047, 8828, 8732, 5743, 1091, 381}};
  double sum = 0;
  for (int i = 0; i < 4; ++i) {
    double inner = 0;
    for (int j = 0; j < 6; ++j) {
      const double away = params.at("x" + std::to_string(j)).get<double>() - kP[i][j] * 1e-4;
      inner += kA[i][j] * away * away;
    }
    sum -= kAlpha[static_cast<std::size_t>(i)] * std::exp(-inner);
  }
  return sum;
}

inline double rosenbrock(const Params& params) {
  const double x = params.at("x").get<double>();
  const double y = params.at("y").get<double>();
  const double value = (1 - x) * (1 - x) + 100 * (y - x * x) * (y - x * x);
  if (params.at("kind") == "flat") return value + 2;
  const double z = params.at("z").get<double>() - 0.5;
  return value + 10 * z * z;
}

// The error of recorded trainings, of that with the nearest rate.
inline double perceptron(const Params& params) {
  static const nlohmann::json kTrainings = recorded("trainings").at("accuracy");
  const auto rate = std::lround((std::log10(params.at("lr").get<double>()) + 4) * 6);
  char row[64];
  std::snprintf(row, sizeof row, "%g %d %d", params.at("momentum").get<double>(),
                params.at("batch").get<int>(), params.at("hidden").get<int>());
  return 1 - kTrainings.at(row).at(static_cast<std::size_t>(rate)).get<double>();
}

inline const std::vector<Function>& functions() {
  static const std::vector<Function> kFunctions = {
      {"branin", R"({"x": {"uniform": [-5, 10]}, "y": {"uniform": [0, 15]}})", branin},
      {"hartmann6",
       R"({"x0": {"uniform": [0, 1]}, "x1": {"uniform": [0, 1]}, "x2": {"uniform": [0, 1]},
           "x3": {"uniform": [0, 1]}, "x4": {"uniform": [0, 1]}, "x5": {"uniform": [0, 1]}})",
       hartmann6},
      {"rosenbrock",
       R"({"x": {"uniform": [-2, 2]}, "y": {"uniform": [-1, 3]},
           "kind": {"choice": ["flat", "tilted"]},
           "z": {"uniform": [-1, 1], "when": {"kind": "tilted"}}})",
       rosenbrock},
      {"perceptron",
       R"({"lr": {"loguniform": [1e-4, 1]}, "momentum": {"choice": [0, 0.5, 0.9, 0.95]},
           "batch": {"choice": [32, 64, 128]}, "hidden": {"choice": [64, 128, 256]}})",
       perceptron}};
  return kFunctions;
}

// The best of so many trials, one after the other.
inline double best_found(const Function& function, const char* search, std::uint64_t seed,
                         std::uint64_t trials) {
  Problems problems;
  const SearchSpace space =
      SearchSpace::from_json(nlohmann::json::parse(function.space), {"space"}, problems);
  SamplerSpec spec =
      sampler_spec_from_json(nlohmann::json::parse(search), space, {"search"}, problems);
  problems.check();
  spec.seed = seed;
  const auto sampler = make_sampler(space, spec, Mode::min);
  double best = INFINITY;
  for (TrialNumber trial = 0; trial < trials; ++trial) {
    const Params params = sampler->suggest(trial);
    sampler->started(trial, params);
    const double value = function.value(params);
    sampler->ended(trial, {Outcome::State::complete, value, 1});
    best = std::min(best, value);
  }
  return best;
}

}  // namespace dtrain::tune::test

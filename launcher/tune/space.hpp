#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/domain.hpp"
#include "launcher/tune/problem.hpp"

// The space of a search: named parameters, what values each may have, and when it is there at all.
//
//   lr: {loguniform: [1e-4, 1e-1]}        batch: choice:16:32          epochs: 10
//   optimizer: {choice: [sgd, adam]}
//   momentum: {uniform: [0.5, 0.99], when: {optimizer: sgd}}
//   model:                                 # its parameters are model.layers and model.width
//     layers: {randint: [1, 9]}
//     width: {sample_from: "model.layers * 32"}
//   adam: {when: "optimizer == 'adam'", beta: {uniform: [0.8, 0.999]}}   # of all in it
namespace dtrain::tune {

// By name; nested ones with dots. What is not there in a trial is not in it.
using Params = std::map<std::string, nlohmann::json>;
// {"model.layers": 3} as {"model": {"layers": 3}}, as a program gets it, and what it was.
nlohmann::json nested(const Params& params);

struct Condition {
  std::map<std::string, std::vector<nlohmann::json>> values;  // each has one of them
  std::optional<Expression> expression;                       // true as well, if there

  std::vector<std::string> names() const;
};

struct Parameter {
  std::string name;
  Domain domain;
  std::vector<Condition> when;  // all hold; a parameter that is not there has no value
  std::string group;            // the same text for parameters with the same conditions
};

class SearchSpace {
 public:
  static constexpr std::size_t kMostParameters = 1'000;
  static constexpr int kDeepest = 16;                    // spaces in one another
  static constexpr std::uint64_t kMostGrid = 1'000'000;  // combinations of grid_search

  SearchSpace() = default;
  // What is wrong goes to `problems`, under `path`; then the space is not to be used.
  static SearchSpace from_json(const nlohmann::json& json, const Path& path, Problems& problems);
  nlohmann::json to_json() const;  // flat, with dots; reads back as an equal space

  // Each behind those that it is computed from or depends on, else by name.
  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  const Parameter* find(std::string_view name) const noexcept;  // null: there is none

  // Combinations of grid_search, at least 1; the first by name changes fastest. A combination that
  // differs only in what is not there is no other one.
  std::uint64_t grid_size() const noexcept { return grid_.empty() ? 1 : grid_.size(); }
  Params grid_point(std::uint64_t index) const;

  // The parameters of one trial. `fixed` are as given where they are there at all; `choose` is
  // asked for each other sampled one that is, in the order of parameters(). Throws Error(invalid)
  // that names the parameter if an expression fails.
  using Choose = std::function<nlohmann::json(const Parameter&, const Params& so_far)>;
  Params fill(const Params& fixed, std::uint64_t seed, std::uint64_t trial,
              const Choose& choose) const;

  // A point that a person wrote, nested or with dots, or both. Given may be less than there is, but
  // for grid_search; each value must be one that the space has.
  Params point_from_json(const nlohmann::json& json, const Path& path, Problems& problems) const;

 private:
  friend class SpaceReader;

  std::vector<Parameter> parameters_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<std::size_t> grid_parameters_;  // by name
  std::vector<std::uint32_t> grid_;           // each combination as one number; empty: no grid
};

// "lr=loguniform:1e-4:1e-1" or "lr={"uniform": [0, 1]}" as key and JSON of a space.
std::pair<std::string, nlohmann::json> param_from_flag(std::string_view flag);

}  // namespace dtrain::tune

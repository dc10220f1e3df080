#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/objective.hpp"
#include "launcher/tune/space.hpp"

// Which parameters the next trial gets. A search is the sequence of what it was told; whoever holds
// it tells a new sampler the same again, in the same order, and gets the same answers.
namespace dtrain::tune {

// `search` of a YAML: "tpe", or {algorithm: tpe, seed: 1, …}.
struct SamplerSpec {
  enum class Algorithm : std::uint8_t {
    random,  // grid_search in its turn, all else at random: Ray's default
    grid,    // the same, where nothing is left to chance
    sobol,   // quasi-random: spread more evenly than chance; scrambled by the seed
    tpe,     // learns from the trials that ended, see tpe.hpp
  };
  static constexpr std::array kNames = {"random", "grid", "sobol", "tpe"};

  Algorithm algorithm = Algorithm::random;
  // Absent: whoever starts the search draws one, and keeps it with the search.
  std::optional<std::uint64_t> seed;
  std::vector<Params> points_to_evaluate;  // the first trials; what a point leaves open is drawn
  // Of tpe:
  int n_startup_trials = 10;  // at random, before it has learned enough
  int n_ei_candidates = 64;
  bool constant_liar = true;  // takes trials that run for bad ones, so as not to repeat them

  static constexpr std::size_t kMostPoints = 10'000;
  // Of tpe, for one suggestion: candidates times sampled parameters. So many take 0.3 s.
  static constexpr std::size_t kMostDraws = 16'384;
};
const char* to_string(SamplerSpec::Algorithm algorithm) noexcept;
// Null is the default. Says also what does not go together with the space.
SamplerSpec sampler_spec_from_json(const nlohmann::json& json, const SearchSpace& space,
                                   const Path& path, Problems& problems);
nlohmann::json to_json(const SamplerSpec& spec);

// How many trials `num_samples` makes: the points, and each sample left once for each combination
// of the grid.
std::uint64_t trial_count(const SearchSpace& space, const SamplerSpec& spec,
                          std::uint64_t num_samples) noexcept;

// How a trial ended.
struct Outcome {
  enum class State : std::uint8_t {
    complete,
    stopped,  // by a scheduler; stands behind all complete ones, those that went further first
    failed,   // nothing is learned of it
  };

  State state = State::complete;
  double value = 0;  // the metric at the end; not finite: as failed
  double time = 0;   // how far it went
};

class Sampler {
 public:
  virtual ~Sampler() = default;

  // The parameters of trial n, by what was told so far; changes nothing, so that it can be asked
  // again after a crash. TPE takes milliseconds: 2 for 6 parameters, 16 for 32, some 300 at
  // kMostDraws. Throws Error(invalid) where an expression of the space fails.
  Params suggest(TrialNumber trial) const;

  // What another search found, before anything else of this one is told. A parameter that the space
  // does not have counts for nothing; a value that it does not have, and the trial does.
  virtual void learn(const Params& params, const Outcome& outcome);
  // Trials in the order of their numbers; ended in whatever order they end.
  virtual void started(TrialNumber trial, const Params& params);
  virtual void ended(TrialNumber trial, const Outcome& outcome);

 protected:
  Sampler(const SearchSpace& space, SamplerSpec spec);

  // Of one that is no given point; `index` counts from 0 behind the points.
  virtual Params sample(TrialNumber trial, std::uint64_t index, const Params& fixed) const;
  Params at_random(TrialNumber trial, const Params& fixed) const;

  SearchSpace space_;
  SamplerSpec spec_;
  std::uint64_t seed_;

  friend std::unique_ptr<Sampler> make_sampler(const SearchSpace& space, const SamplerSpec& spec,
                                               Mode mode);
};

// Of a space and a spec without problems.
std::unique_ptr<Sampler> make_sampler(const SearchSpace& space, const SamplerSpec& spec, Mode mode);

}  // namespace dtrain::tune

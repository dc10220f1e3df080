#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "launcher/tune/parzen.hpp"
#include "launcher/tune/sampler.hpp"

namespace dtrain::tune {

// The tree-structured Parzen estimator (Bergstra et al., Algorithms for hyper-parameter
// optimization, NIPS 2011; Watanabe, arXiv 2304.11127), multivariate, with the defaults of Optuna
// 5.0.0's TPESampler (optuna/samplers/_tpe): trials are split into the best 10 % (25 at most) and
// the rest, each is a mixture of truncated normal and categorical kernels over whole points, and
// the candidate of the first that is likeliest under it against the second is taken.
//
// Parameters with the same conditions are one group and picked together, from the trials that had
// that group; Optuna finds such groups by looking at trials (`group=True`), here the space says
// them. Two figures are other ones: 64 candidates, not 24, since they cost little here, and kernels
// that may be somewhat narrower, see parzen.cpp. Over 150 and more seeds that found better values
// on the functions of the tests, on Ackley's and on a space of mixed kinds, and as good ones on
// Rastrigin's and on noisy ones.
//
// A suggestion looks at the kMostAbove newest of the rest, so that it costs the same at the ten
// thousandth trial as at the thousandth.
class Tpe : public Sampler {
 public:
  static constexpr std::size_t kMostBelow = 25;
  static constexpr std::size_t kMostAbove = 1'000;

  Tpe(const SearchSpace& space, const SamplerSpec& spec, Mode mode);

  void learn(const Params& params, const Outcome& outcome) override;
  void started(TrialNumber trial, const Params& params) override;
  void ended(TrialNumber trial, const Outcome& outcome) override;

 protected:
  Params sample(TrialNumber trial, std::uint64_t index, const Params& fixed) const override;

 private:
  enum class State : std::uint8_t { running, ended, failed };
  struct Entry {
    std::vector<double> at;  // by dimension, see parzen.hpp; NaN: it had no such parameter
    State state = State::running;
  };
  // Best first: complete ones by their value, then stopped ones, the furthest first; then as they
  // came.
  using Rank = std::tuple<bool, double, double, std::size_t>;
  struct Group {
    std::vector<std::size_t> dimensions;
  };

  std::size_t add(const Params& params);
  void rank(std::size_t entry, const Outcome& outcome);
  // The points of those entries that had all of the group.
  std::vector<std::vector<double>> points(const std::vector<std::size_t>& entries,
                                          const Group& group) const;
  std::vector<double> best(TrialNumber trial, const Group& group,
                           const std::vector<std::size_t>& below,
                           const std::vector<std::size_t>& above) const;

  Mode mode_;
  std::vector<Parameter> parameters_;    // a dimension each
  std::map<std::string, Group> groups_;  // by Parameter::group
  std::map<std::string, std::size_t> dimension_;
  std::vector<Entry> entries_;
  std::map<TrialNumber, std::size_t> entry_of_;
  std::set<Rank> ranked_;
};

}  // namespace dtrain::tune

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/tune/space.hpp"

// How much of a metric's differences between trials hangs on each parameter. By permutation
// (Breiman 2001): a forest of regression trees learns the trials' order by the metric from their
// parameters; then each parameter's values are dealt out anew among the trials that a tree has not
// seen, and what that costs in fit is its importance. The same trials and seed give the same
// answer.
namespace dtrain::tune {

struct Importance {
  std::string name;
  double share = 0;  // of all that is explained, 0 to 1
};
struct Importances {
  std::vector<Importance> parameters;  // the greatest first; those that never differ are not there
  // How much of the variance the forest foretells in trials that it has not seen: near 0 or below,
  // the shares mean nothing.
  double explained = 0;
};

// Trials whose value is not finite count for nothing. Throws Error(not_found) with fewer than
// kFewestTrials left, or where no parameter differs.
Importances importances(const SearchSpace& space, const std::vector<Params>& trials,
                        const std::vector<double>& values, std::uint64_t seed);
inline constexpr std::size_t kFewestTrials = 8;

}  // namespace dtrain::tune

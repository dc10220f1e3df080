#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

#include "trainer/data/image_source.hpp"

// Parts of data sets, as torch.utils.data.Subset and random_split.
namespace dtrain::train {

// A number of samples (50000), or a part of all of them (0.8).
struct SplitLength {
  double value = 0;
  template <typename Number>
  requires std::integral<Number> || std::floating_point<Number> SplitLength(Number number)
      : value(static_cast<double>(number)) {}
};

// How many samples each part gets, by random_split's rule: lengths that sum to 1 are parts of all
// samples, each rounded down, and what is left over goes to them one by one from the first on.
// Other lengths are numbers of samples and sum to all of them. Anything else is an Error.
std::vector<std::int64_t> split_lengths(std::int64_t samples,
                                        const std::vector<SplitLength>& lengths);

// The samples of each part: pieces, one after the other, of Permutation(samples, seed, kSplitEpoch)
// (sampler.hpp). So a function of samples, lengths and seed alone, the same on every rank and at
// every start; not the samples that Python's generator of the same seed would pick.
inline constexpr std::int64_t kSplitEpoch = -1;  // no epoch that is trained has this order
std::vector<std::vector<std::int64_t>> random_split(std::int64_t samples,
                                                    const std::vector<SplitLength>& lengths,
                                                    std::uint64_t seed = 0);

// These images alone, in this order; one may come twice. Throws Error on an index that the source
// does not have. What depends on a sample's index (a transform's randomness, messages) goes by its
// place in the subset.
Images subset(Images images, std::vector<std::int64_t> indices);

// The same source in random parts, that have no image in common.
std::vector<Images> random_split(const Images& images, const std::vector<SplitLength>& lengths,
                                 std::uint64_t seed = 0);

}  // namespace dtrain::train

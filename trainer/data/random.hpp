#pragma once

#include <cstdint>

#include "trainer/core/mix.hpp"

namespace dtrain::train {

// Random numbers for one sample: a function of (seed, epoch, the sample's index), whichever thread
// or rank asks, and in whatever order samples are made.
class SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
      : state_(
            mix(mix(seed, static_cast<std::uint64_t>(epoch)), static_cast<std::uint64_t>(index))) {}

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15U); }
  // From 0 to n - 1; n is at least 1.
  std::int64_t below(std::int64_t n) {
    // 32 random bits stretched over n: as even as any picture needs.
    return static_cast<std::int64_t>((next() >> 32) * static_cast<std::uint64_t>(n) >> 32);
  }
  // At least 0 and below 1.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool coin() { return (next() >> 63) != 0; }

 private:
  std::uint64_t state_;
};

}  // namespace dtrain::train

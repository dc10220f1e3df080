#pragma once

#include <cstdint>

namespace dtrain::train {

// The finalizer of SplitMix64: every bit of the input moves every bit of the output. For numbers
// that are a function of others (a seed, an epoch, an index) and not of what came before.
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a) ^ b);
}

}  // namespace dtrain::train

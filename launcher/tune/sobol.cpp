#include "launcher/tune/sobol.hpp"

#include <bit>
#include <string>

#include "launcher/core/error.hpp"
#include "launcher/tune/random.hpp"

namespace dtrain::tune {
namespace {

constexpr std::uint32_t highest(int bit) {
  return std::uint32_t{1} << (Sobol::kBits - 1 - bit);
}

// Bratley and Fox, Algorithm 659 (1988): the recurrence of the polynomial.
std::array<std::uint32_t, Sobol::kBits> plain_directions(std::size_t dimension) {
  std::array<std::uint32_t, Sobol::kBits> directions{};
  const SobolRow& row = kSobolTable[dimension];
  const int degree = std::bit_width(row.polynomial) - 1;
  for (int i = 0; i < Sobol::kBits; ++i) {
    auto& direction = directions[static_cast<std::size_t>(i)];
    if (degree == 0) {
      direction = highest(i);
    } else if (i < degree) {
      direction = row.first[static_cast<std::size_t>(i)] << (Sobol::kBits - 1 - i);
    } else {
      const std::uint32_t oldest = directions[static_cast<std::size_t>(i - degree)];
      direction = oldest ^ (oldest >> degree);
      for (int k = 1; k < degree; ++k) {
        if (row.polynomial >> (degree - k) & 1) {
          direction ^= directions[static_cast<std::size_t>(i - k)];
        }
      }
    }
  }
  return directions;
}

std::vector<Sobol::Scramble> random_scrambles(std::size_t dimensions, std::uint64_t seed) {
  std::vector<Sobol::Scramble> scrambles;
  for (std::size_t i = 0; i < dimensions; ++i) {
    scrambles.push_back(Sobol::random_scramble(seed, i));
  }
  return scrambles;
}

}  // namespace

Sobol::Scramble Sobol::random_scramble(std::uint64_t seed, std::size_t dimension) {
  Stream chance(seed, dimension, "sobol");
  Scramble scramble;
  const std::uint32_t all = (std::uint32_t{1} << kBits) - 1;
  for (int i = 0; i < kBits; ++i) {
    const std::uint32_t before = all ^ (2 * highest(i) - 1);  // the bits above bit i
    scramble.rows[static_cast<std::size_t>(i)] =
        (static_cast<std::uint32_t>(chance.bits()) & before) | highest(i);
  }
  scramble.shift = static_cast<std::uint32_t>(chance.bits()) & all;
  return scramble;
}

Sobol::Sobol(std::size_t dimensions, std::span<const Scramble> scrambles) {
  if (dimensions > kMostDimensions) {
    throw Error(ErrorCode::invalid, "Sobol's sequence has at most " +
                                        std::to_string(kMostDimensions) + " dimensions here");
  }
  for (std::size_t i = 0; i < dimensions; ++i) {
    Dimension dimension{plain_directions(i)};
    if (!scrambles.empty()) {
      dimension.shift = scrambles[i].shift;
      for (std::uint32_t& direction : dimension.directions) {
        std::uint32_t scrambled = 0;
        for (int bit = 0; bit < kBits; ++bit) {
          const std::uint32_t row = scrambles[i].rows[static_cast<std::size_t>(bit)];
          if (std::popcount(row & direction) & 1) scrambled |= highest(bit);
        }
        direction = scrambled;
      }
    }
    dimensions_.push_back(dimension);
  }
}

Sobol::Sobol(std::size_t dimensions, std::uint64_t seed)
    : Sobol(dimensions, random_scrambles(dimensions, seed)) {}

std::uint32_t Sobol::at(std::uint64_t index, std::size_t dimension) const noexcept {
  const Dimension& of = dimensions_[dimension];
  const std::uint64_t gray = index ^ (index >> 1);
  std::uint32_t place = of.shift;
  for (int i = 0; i < kBits; ++i) {
    if (gray >> i & 1) place ^= of.directions[static_cast<std::size_t>(i)];
  }
  return place;
}

}  // namespace dtrain::tune

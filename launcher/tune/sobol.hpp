#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

// Sobol's sequence with the direction numbers of Joe and Kuo, point for point SciPy's: plain as
// scipy.stats.qmc.Sobol(scramble=False), and scrambled as it does it (a random linear matrix and a
// digital shift, Matoušek 1998), though with bits of our own.
namespace dtrain::tune {

class Sobol {
 public:
  static constexpr int kBits = 30;                     // a coordinate is a number below 2^30
  static constexpr std::size_t kMostDimensions = 128;  // as many as the table has

  // What scrambles one dimension. Bits count from the highest of the 30.
  struct Scramble {
    std::array<std::uint32_t, kBits> rows{};  // row i makes bit i, of bits 0 to i
    std::uint32_t shift = 0;
  };
  static Scramble random_scramble(std::uint64_t seed, std::size_t dimension);

  Sobol(std::size_t dimensions, std::span<const Scramble> scrambles);  // none: plain
  Sobol(std::size_t dimensions, std::uint64_t seed);

  // Coordinate of the index-th point from 0; after 2^30 points they come again.
  std::uint32_t at(std::uint64_t index, std::size_t dimension) const noexcept;

 private:
  struct Dimension {
    std::array<std::uint32_t, kBits> directions{};
    std::uint32_t shift = 0;
  };
  std::vector<Dimension> dimensions_;
};

// A row of the table: the primitive polynomial and the first direction numbers.
struct SobolRow {
  std::uint32_t polynomial;
  std::array<std::uint32_t, 10> first;
};
extern const std::array<SobolRow, Sobol::kMostDimensions> kSobolTable;

}  // namespace dtrain::tune

#pragma once

#include <array>
#include <cstdint>
#include <string_view>

// Chance that can be repeated: the same on every machine, and no state to keep. What is drawn for
// trial 7 depends on the seed, on 7 and on what it is for, not on what was drawn before.
namespace dtrain::tune {

// Philox4x32-10: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) noexcept;

// The draws of one trial for one purpose. A copy draws the same again.
class Stream {
 public:
  // `purpose` is part of a search's record: another name gives other numbers.
  Stream(std::uint64_t seed, std::uint64_t trial, std::string_view purpose) noexcept;

  std::uint64_t bits() noexcept;
  double uniform() noexcept;  // from 0 to below 1, 53 bits
  double normal() noexcept;   // mean 0, standard deviation 1
  // From 0 to below n, each as likely; n > 0.
  std::uint64_t below(std::uint64_t n) noexcept;

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;  // trial, purpose, and how often it was drawn
  std::array<std::uint32_t, 4> drawn_{};
  int left_ = 0;  // of drawn_, in halves
};

}  // namespace dtrain::tune

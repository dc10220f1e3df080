#include "launcher/tune/random.hpp"

#include "launcher/tune/numeric.hpp"

namespace dtrain::tune {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

Stream::Stream(std::uint64_t seed, std::uint64_t trial, std::string_view purpose) noexcept
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  counter_ = {0, hash, static_cast<std::uint32_t>(trial), static_cast<std::uint32_t>(trial >> 32)};
}

std::uint64_t Stream::bits() noexcept {
  if (left_ == 0) {
    drawn_ = philox(counter_, key_);
    ++counter_[0];
    left_ = 2;
  }
  --left_;
  const auto half = static_cast<std::size_t>(left_ == 1 ? 0 : 2);
  return std::uint64_t{drawn_[half]} << 32 | drawn_[half + 1];
}

double Stream::uniform() noexcept {
  return static_cast<double>(bits() >> 11) * 0x1p-53;
}

double Stream::normal() noexcept {
  return normal_quantile((static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53);
}

std::uint64_t Stream::below(std::uint64_t n) noexcept {
  const std::uint64_t whole = UINT64_MAX - UINT64_MAX % n;  // a multiple of n
  std::uint64_t drawn = bits();
  while (drawn >= whole) drawn = bits();
  return drawn % n;
}

}  // namespace dtrain::tune

#include "launcher/tune/numeric.hpp"

#include <cmath>
#include <limits>

#include "launcher/tune/random.hpp"
#include "tests/launcher/tune/support.hpp"

using namespace dtrain::tune;

TEST_CASE("the functions are those of mathematics") {
  double worst_exp = 0, worst_log = 0, worst_cdf = 0, worst_quantile = 0;
  for (int i = -7000; i <= 7000; ++i) {
    const double x = i * 0.1 + 0.013;
    worst_exp = std::max(worst_exp, std::abs(natural_exp(x) / std::exp(x) - 1));
    const double y = std::exp(x);
    worst_log = std::max(
        worst_log, std::abs(natural_log(y) - std::log(y)) / std::max(1.0, std::abs(std::log(y))));
    const double z = i * 0.001;
    const double cdf = std::erfc(-z / std::sqrt(2)) / 2;
    worst_cdf = std::max(worst_cdf, std::abs(normal_cdf(z) / cdf - 1));
    if (z <= 0) worst_quantile = std::max(worst_quantile, std::abs(normal_quantile(cdf) - z));
  }
  CHECK(worst_exp < 1e-15);
  CHECK(worst_log < 1e-15);
  CHECK(worst_cdf < 1e-13);
  CHECK(worst_quantile < 1e-13);
  CHECK(natural_exp(0) == 1);
  CHECK(natural_log(1) == 0);
  CHECK(natural_exp(1000) == std::numeric_limits<double>::infinity());
  CHECK(natural_exp(-1000) == 0);
  CHECK(natural_exp(-740) == doctest::Approx(std::exp(-740)));
  CHECK(natural_log(5e-324) == doctest::Approx(std::log(5e-324)));
  CHECK(std::isnan(natural_log(-1)));
  CHECK(power(2, 10) == 1024);
  CHECK(power(10, -3) == 0.001);
  CHECK(power(2, 0.3) == doctest::Approx(std::pow(2, 0.3)));
  CHECK(power(0, 0.3) == 0);
}

// The values of Random123's kat_vectors.
TEST_CASE("philox gives its authors' answers") {
  using Four = std::array<std::uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint32_t all = 0xffffffff;
  CHECK(philox({all, all, all, all}, {all, all}) ==
        Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("a stream is fixed for ever, and others are other ones") {
  Stream stream(42, 7, "lr");
  CHECK(stream.bits() == 10862895454640273920U);
  CHECK(Stream(42, 7, "lr").uniform() != Stream(42, 8, "lr").uniform());
  CHECK(Stream(42, 7, "lr").uniform() != Stream(43, 7, "lr").uniform());
  CHECK(Stream(42, 7, "lr").uniform() != Stream(42, 7, "momentum").uniform());
  double sum = 0, squares = 0;
  std::array<int, 5> counts{};
  for (int i = 0; i < 20'000; ++i) {
    const double normal = stream.normal();
    sum += normal;
    squares += normal * normal;
    ++counts[static_cast<std::size_t>(stream.below(5))];
  }
  CHECK(std::abs(sum / 20'000) < 0.03);
  CHECK(squares / 20'000 == doctest::Approx(1).epsilon(0.03));
  for (const int count : counts) CHECK(std::abs(count - 4000) < 250);
}

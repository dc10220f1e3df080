#include "trainer/comm/kernels.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace dtrain::train::comm;

namespace {

template <typename T>
std::vector<T> run(Reduction reduction, Element element, const std::vector<std::vector<T>>& in) {
  std::vector<const void*> sources;
  for (const auto& source : in) sources.push_back(source.data());
  std::vector<T> out(in[0].size());
  const bool is_complex = element == Element::c64 || element == Element::c128;
  reduce(reduction, element, out.data(), sources.data(), static_cast<int>(in.size()),
         is_complex ? out.size() / 2 : out.size());
  return out;
}

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

}  // namespace

TEST_CASE("each operation of three sources") {
  const std::vector<Ints> in{{6, -7}, {3, 5}, {12, 2}};
  const auto of = [&](Reduction reduction) { return run(reduction, Element::i32, in); };
  CHECK(of(Reduction::sum) == Ints{21, 0});
  CHECK(of(Reduction::average) == Ints{7, 0});
  CHECK(of(Reduction::product) == Ints{216, -70});
  CHECK(of(Reduction::min) == Ints{3, -7});
  CHECK(of(Reduction::max) == Ints{12, 5});
  CHECK(of(Reduction::bit_and) == Ints{6 & 3 & 12, -7 & 5 & 2});
  CHECK(of(Reduction::bit_or) == Ints{6 | 3 | 12, -7 | 5 | 2});
  CHECK(of(Reduction::bit_xor) == Ints{6 ^ 3 ^ 12, -7 ^ 5 ^ 2});
}

TEST_CASE("every type adds up") {
  CHECK(run<std::uint8_t>(Reduction::sum, Element::u8, {{250}, {10}}) ==
        std::vector<std::uint8_t>{4});
  CHECK(run<std::int8_t>(Reduction::sum, Element::i8, {{-3}, {1}}) == std::vector<std::int8_t>{-2});
  CHECK(run<std::int64_t>(Reduction::sum, Element::i64, {{1LL << 40}, {1}}) ==
        std::vector<std::int64_t>{(1LL << 40) + 1});
  CHECK(run<double>(Reduction::sum, Element::f64, {{0.5}, {0.25}}) == std::vector<double>{0.75});
  CHECK(run<float>(Reduction::sum, Element::c64, {{1, 2}, {3, 4}})[0] == 4);
  bool yes = true;
  bool no = false;
  const void* sources[] = {&no, &yes};
  bool out = false;
  reduce(Reduction::sum, Element::boolean, &out, sources, 2, 1);
  CHECK(out);
  reduce(Reduction::product, Element::boolean, &out, sources, 2, 1);
  CHECK_FALSE(out);
}

TEST_CASE("sixteen bit floats are rounded once, to even") {
  // 256 + 1 + 1: rounded each time it would stay 256, which has 8 bits.
  using B = c10::BFloat16;
  const auto b = run<B>(Reduction::sum, Element::bf16,
                        {{B(256.0F), B(1.0F)}, {B(1.0F), B(2.0F)}, {B(1.0F), B(3.0F)}});
  CHECK(static_cast<float>(b[0]) == 258.0F);
  CHECK(static_cast<float>(b[1]) == 6.0F);
  using H = c10::Half;
  const auto h = run<H>(Reduction::average, Element::f16, {{H(2048.0F)}, {H(1.0F)}, {H(1.0F)}});
  CHECK(static_cast<float>(h[0]) == doctest::Approx(683.33F).epsilon(1e-3));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(
      static_cast<float>(run<B>(Reduction::sum, Element::bf16, {{B(nan)}, {B(1.0F)}})[0])));
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(
      static_cast<float>(run<B>(Reduction::sum, Element::bf16, {{B(infinity)}, {B(1.0F)}})[0])));
}

TEST_CASE("NaN wins a min and a max") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::min, Reduction::max}) {
    CHECK(std::isnan(run<float>(reduction, Element::f32, {{nan}, {1}})[0]));
    CHECK(std::isnan(run<float>(reduction, Element::f32, {{1}, {nan}})[0]));
  }
}

TEST_CASE("the result may take the place of a source, over many passes") {
  for (const int place : {0, 1}) {
    std::vector<Floats> in(3, Floats(10001));
    Floats expected(10001);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      for (std::size_t s = 0; s < 3; ++s) {
        in[s][i] = 0.1F * static_cast<float>(i) + static_cast<float>(s);
      }
      expected[i] = in[0][i] + in[1][i] + in[2][i];
    }
    const void* sources[] = {in[0].data(), in[1].data(), in[2].data()};
    auto& out = in[static_cast<std::size_t>(place)];
    reduce(Reduction::sum, Element::f32, out.data(), sources, 3, expected.size());
    CHECK(out == expected);
  }
}

TEST_CASE("what cannot be reduced is known") {
  CHECK_FALSE(can_reduce(Reduction::max, Element::c64));
  CHECK_FALSE(can_reduce(Reduction::bit_and, Element::f32));
  CHECK_FALSE(can_reduce(Reduction::average, Element::boolean));
  CHECK(can_reduce(Reduction::bit_xor, Element::boolean));
}

TEST_CASE("products are rounded to the element's type before they are added up") {
  std::vector<float> values;
  for (int i = 0; i < 5003; ++i) values.push_back(0.37F * static_cast<float>(i % 91) - 7);
  const auto factor = static_cast<float>(1.0 / 3);
  for (int n = 1; n <= 4; ++n) {
    for (int place = -1; place < n; ++place) {
      CAPTURE(n);
      CAPTURE(place);
      std::vector<std::vector<float>> in(4, values);
      for (std::size_t k = 0; k < 4; ++k)
        std::rotate(in[k].begin(), in[k].begin() + 7 * static_cast<std::ptrdiff_t>(k), in[k].end());
      std::vector<float> expected(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        volatile float sum = in[0][i] * factor;
        for (int k = 1; k < n; ++k) {
          volatile const float product = in[static_cast<std::size_t>(k)][i] * factor;
          sum = sum + product;
        }
        expected[i] = sum;
      }
      std::vector<float> apart(values.size());
      const void* sources[] = {in[0].data(), in[1].data(), in[2].data(), in[3].data()};
      std::vector<float>& out = place < 0 ? apart : in[static_cast<std::size_t>(place)];
      sum_scaled(Element::f32, out.data(), sources, n, values.size(), 1.0 / 3);
      CHECK(out == expected);
    }
  }
  const std::vector<c10::BFloat16> halves(values.begin(), values.end());
  std::vector<c10::BFloat16> out(values.size());
  const void* twice[] = {halves.data(), halves.data()};
  sum_scaled(Element::bf16, out.data(), twice, 2, out.size(), 1.0 / 3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const c10::BFloat16 product(static_cast<float>(halves[i]) * factor);
    CHECK(out[i].x == c10::BFloat16(2 * static_cast<float>(product)).x);
  }
  CHECK(!can_scale(Element::i32));
}

TEST_CASE("squares are gathered in double") {
  std::vector<float> values;
  double squares = 0;
  for (int i = 0; i < 5003; ++i) {
    values.push_back(0.37F * static_cast<float>(i % 91) - 7);
    squares += static_cast<double>(values.back()) * static_cast<double>(values.back());
  }
  CHECK(sum_of_squares(Element::f32, values.data(), values.size()) ==
        doctest::Approx(squares).epsilon(1e-13));
  const std::vector<c10::BFloat16> halves(values.begin(), values.end());
  CHECK(sum_of_squares(Element::bf16, halves.data(), 1) == 49);
}

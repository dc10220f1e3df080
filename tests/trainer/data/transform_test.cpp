#include "trainer/data/transform.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>

#include "tests/trainer/support/temporary.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

// 2 rows of 3: 1 2 3 / 4 5 6.
const std::vector<std::uint8_t> kSmall{1, 2, 3, 4, 5, 6};

ImageView small() {
  return ImageView::planar(kSmall.data(), 1, 2, 3);
}

std::vector<int> bytes_after(const Transform& transform, const ImageView& image,
                             std::int64_t index = 0, std::int64_t channels = 1) {
  const Transformer transformer(transform, channels);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(transformer.values()), 77);
  transformer.write(image, SampleRandom(1, 2, index), out.data());
  return {out.begin(), out.end()};
}

}  // namespace

TEST_CASE("padding and the middle") {
  CHECK(bytes_after({.rows = 2, .columns = 3}, small()) == std::vector<int>{1, 2, 3, 4, 5, 6});
  CHECK(bytes_after({.rows = 4, .columns = 5, .pad = 1}, small()) ==
        std::vector<int>{0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0});
  CHECK(bytes_after({.rows = 2, .columns = 1}, small()) == std::vector<int>{2, 5});
  CHECK(contains(message_of<Error>([] { bytes_after({.rows = 3, .columns = 3}, small()); }),
                 "is 2x3, too small for 3x3"));
}

TEST_CASE("crops and flips depend on seed, epoch and index, and show all there is") {
  const Transform transform{
      .rows = 2, .columns = 3, .pad = 2, .random_crop = true, .random_flip = true};
  CHECK(bytes_after(transform, small(), 5) == bytes_after(transform, small(), 5));
  std::set<std::vector<int>> seen;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::vector<int> out = bytes_after(transform, small(), i);
    seen.insert(out);
    // Whatever was cut: what is left stands side by side, one way round or the other.
    for (std::size_t row = 0; row < 2; ++row) {
      const std::vector<int> line(out.begin() + static_cast<long>(row) * 3,
                                  out.begin() + static_cast<long>(row) * 3 + 3);
      for (std::size_t c = 0; c + 1 < 3; ++c) {
        if (line[c] != 0 && line[c + 1] != 0) CHECK(std::abs(line[c] - line[c + 1]) == 1);
      }
    }
  }
  CHECK(seen.contains({1, 2, 3, 4, 5, 6}));
  CHECK(seen.contains({3, 2, 1, 6, 5, 4}));
  CHECK(seen.contains({0, 0, 1, 0, 0, 4}));
  CHECK(seen.contains({1, 0, 0, 4, 0, 0}));  // the same corner, flipped
  CHECK(seen.size() == 31);  // 3 by 5 places where something is seen, both ways round, and nothing
}

TEST_CASE("strides do not matter, and grey stands for three channels") {
  const std::vector<std::uint8_t> pixels{1, 10, 100, 2, 20, 200, 3, 30, 250, 4, 40, 255};
  const ImageView view = ImageView::interleaved(pixels.data(), 3, 2, 2);
  const Transform transform{.rows = 2, .columns = 2};
  CHECK(bytes_after(transform, view, 0, 3) ==
        std::vector<int>{1, 2, 3, 4, 10, 20, 30, 40, 100, 200, 250, 255});
  CHECK(bytes_after({.rows = 1, .columns = 3}, ImageView::planar(kSmall.data(), 1, 1, 3), 0, 3) ==
        std::vector<int>{1, 2, 3, 1, 2, 3, 1, 2, 3});
  CHECK(contains(message_of<Error>([&] { bytes_after(transform, view, 0, 1); }), "has 3 channels"));
}

TEST_CASE("values are normalized, black as well") {
  const Transformer transformer({.rows = 1, .columns = 3, .pad = 1, .mean = {0.5F}, .std = {0.25F}},
                                1);
  const std::vector<std::uint8_t> pixel{255};
  std::vector<float> out(3);
  transformer.write(ImageView::planar(pixel.data(), 1, 1, 1), SampleRandom(0, 0, 0), out.data());
  CHECK(out == std::vector<float>{-2, 2, -2});
}

TEST_CASE("scaling is bilinear, and keeps what is even") {
  std::vector<std::uint8_t> ramp(16 * 8);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<std::uint8_t>(i % 16 * 10);
  const ImageView view = ImageView::planar(ramp.data(), 1, 8, 16);
  // The middle 8 columns (40 to 110) at half the size: between two pixels each.
  CHECK(bytes_after({.rows = 4, .columns = 4, .fit = Transform::Fit::resize}, view) ==
        std::vector<int>{45, 65, 85, 105, 45, 65, 85, 105, 45, 65, 85, 105, 45, 65, 85, 105});
  CHECK(bytes_after({.rows = 1, .columns = 4, .fit = Transform::Fit::resize}, small()).size() == 4);
  const std::vector<std::uint8_t> even(64, 99);
  for (std::int64_t i = 0; i < 200; ++i) {
    const auto out = bytes_after(
        {.rows = 5, .columns = 3, .fit = Transform::Fit::random_resized, .random_flip = true},
        ImageView::planar(even.data(), 1, 8, 8), i);
    CHECK(out == std::vector<int>(15, 99));
  }
  // Random parts differ, and reach all of the image.
  int least = 255;
  int most = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    for (const int value :
         bytes_after({.rows = 4, .columns = 4, .fit = Transform::Fit::random_resized}, view, i)) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  CHECK(least < 10);
  CHECK(most > 140);
}

TEST_CASE("an image so thin that it would be huge when it is scaled is refused") {
  const std::vector<std::uint8_t> line(65500, 5);
  const Transform transform{.rows = 224, .columns = 224, .resize = 256};
  for (const ImageView& view :
       {ImageView::planar(line.data(), 1, 1, 65500), ImageView::planar(line.data(), 1, 65500, 1)}) {
    CHECK(contains(message_of<Error>([&] { bytes_after(transform, view); }),
                   "too thin to be scaled to a shorter side of 256"));
  }
}

TEST_CASE("impossible transforms are refused") {
  const auto refusal = [](const Transform& t) {
    return message_of<Error>([&] { Transformer(t, 3); });
  };
  CHECK(contains(refusal({.rows = 0, .columns = 4}), "not possible"));
  CHECK(contains(refusal({.rows = 4, .columns = 4, .mean = {1, 2}}), "one value"));
  CHECK(contains(refusal({.rows = 4, .columns = 4, .std = {0}}), "std must be above 0"));
}

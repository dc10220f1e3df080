// Against torchvision: tests/golden/transforms/make.py.
#include "trainer/data/augment.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/checkpoint/safetensors.hpp"
#include "trainer/core/error.hpp"
#include "trainer/data/resample.hpp"
#include "trainer/data/transform.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

struct Picture {
  std::vector<std::uint8_t> values;
  std::int64_t channels = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  Pixels pixels() { return {values.data(), channels, rows, columns}; }
  ImageView view() const { return ImageView::planar(values.data(), channels, rows, columns); }
};

const SafetensorsFile& golden() {
  const char* folder = std::getenv("DTRAIN_GOLDEN");
  if (folder == nullptr) throw std::runtime_error("DTRAIN_GOLDEN is not set; run meson test");
  static const SafetensorsFile file(std::filesystem::path(folder) /
                                    "transforms/transforms.safetensors");
  return file;
}

Picture golden(const std::string& name) {
  const TensorEntry* entry = golden().find(name);
  if (entry == nullptr) throw std::runtime_error(name + " is not in the golden file");
  const auto bytes = golden().bytes(*entry);
  const auto* from = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {{from, from + bytes.size()}, entry->shape[0], entry->shape[1], entry->shape[2]};
}

// The largest difference, and how many values differ at all.
std::pair<int, std::size_t> difference(const Picture& one, const Picture& other) {
  REQUIRE(one.values.size() == other.values.size());
  int most = 0;
  std::size_t differing = 0;
  for (std::size_t i = 0; i < one.values.size(); ++i) {
    const int away = std::abs(one.values[i] - other.values[i]);
    most = std::max(most, away);
    differing += away != 0 ? 1 : 0;
  }
  return {most, differing};
}

Picture transformed(const Transform& transform, const Picture& image, std::int64_t index = 0) {
  const Transformer transformer(transform, image.channels);
  Picture out{{}, image.channels, transform.rows, transform.columns};
  out.values.resize(static_cast<std::size_t>(transformer.values()));
  transformer.write(image.view(), SampleRandom(1, 2, index), out.values.data());
  return out;
}

std::vector<std::string> names(const std::string& prefix) {
  std::vector<std::string> found;
  for (const TensorEntry& entry : golden().tensors()) {
    if (entry.name.starts_with(prefix)) found.push_back(entry.name);
  }
  std::sort(found.begin(), found.end());
  REQUIRE(!found.empty());
  return found;
}

// The parts of a name between its dots, after the first.
std::vector<std::string> parts(const std::string& name) {
  std::vector<std::string> result;
  std::istringstream in(name.substr(name.find('.') + 1));
  for (std::string part; std::getline(in, part, '.');) result.push_back(part);
  return result;
}

}  // namespace

TEST_CASE("Resize and CenterCrop are torchvision's, within one level") {
  const auto check = [](const std::string& name, std::int64_t size, const Picture& image) {
    CAPTURE(name);
    const Picture expected = golden("resize." + name);
    const auto [most, differing] = difference(
        transformed({.rows = expected.rows, .columns = expected.columns, .resize = size}, image),
        expected);
    CHECK(most <= 1);
    CHECK(differing * 50 <= expected.values.size());
  };
  const Picture image = golden("image");
  check("down", 20, image);
  check("crop", 24, image);
  check("odd", 33, image);
  check("up", 64, image);
  check("same", 37, image);
  check("grey", 15, golden("grey"));
}

TEST_CASE("a part is scaled as RandomResizedCrop does it, flipped or not, from any strides") {
  const Picture image = golden("image");
  for (const std::string& name : names("part.")) {
    CAPTURE(name);
    const auto at = parts(name);
    const Picture expected = golden(name);
    Picture out = expected;
    const auto part_of = [&](const ImageView& view) {
      return cut(view, std::stol(at[0]), std::stol(at[1]), std::stol(at[2]), std::stol(at[3]));
    };
    const Box box{0, 0, std::stod(at[2]), std::stod(at[3])};
    resample(part_of(image.view()), box, 3, 16, 12, false, out.values.data());
    CHECK(difference(out, expected).first <= 1);

    std::vector<std::uint8_t> mixed;  // the same pixels, channels side by side
    const std::size_t plane = image.values.size() / 3;
    for (std::size_t i = 0; i < plane; ++i) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        mixed.push_back(image.values[channel * plane + i]);
      }
    }
    Picture flipped = expected;
    resample(part_of(ImageView::interleaved(mixed.data(), 3, image.rows, image.columns)), box, 3,
             16, 12, true, flipped.values.data());
    for (std::size_t row = 0; row < 3 * 16; ++row) {
      const auto begin = flipped.values.begin() + static_cast<long>(row * 12);
      std::reverse(begin, begin + 12);
    }
    CHECK(flipped.values == out.values);
  }
}

TEST_CASE("colours are changed as torchvision changes them, within one level") {
  using Adjust = void (*)(Pixels, double);
  const std::vector<std::pair<std::string, Adjust>> all{{"brightness", adjust_brightness},
                                                        {"contrast", adjust_contrast},
                                                        {"saturation", adjust_saturation},
                                                        {"sharpness", adjust_sharpness},
                                                        {"hue", adjust_hue}};
  for (const auto& [what, adjust] : all) {
    for (const std::string& name : names(what + ".")) {
      CAPTURE(name);
      const bool is_grey = contains(name, "grey");
      Picture image = golden(is_grey ? "grey" : "image");
      adjust(image.pixels(), std::stod(name.substr(what.size() + (is_grey ? 6 : 1))));
      const Picture expected = golden(name);
      const auto [most, differing] = difference(image, expected);
      CHECK(most <= 1);
      CHECK(differing * 50 <= expected.values.size());
    }
  }
  Picture image = golden("image");
  CHECK_THROWS_AS(adjust_contrast(image.pixels(), -1), Error);
  CHECK_THROWS_AS(adjust_hue(image.pixels(), 0.6), Error);
}

TEST_CASE("each of RandAugment's operations is torchvision's, at each magnitude, either way") {
  const auto all = names("augment.");
  CHECK(all.size() == 2 * (9 * 2 + 5));
  for (const std::string& name : all) {
    CAPTURE(name);
    const auto at = parts(name);
    Picture image = golden("image");
    augment(image.pixels(), static_cast<AugmentOp>(std::stoi(at[0])),
            {.magnitude = std::stoi(at[1])}, at[2] == "-1");
    const Picture expected = golden(name);
    const auto [most, differing] = difference(image, expected);
    // Where a pixel lies just between two, torchvision's 32 bits may take the other one.
    const int op = std::stoi(at[0]);
    if (op < 1 || op > 5) CHECK(most <= 1);
    CHECK(differing * 100 <= expected.values.size());
  }
}

TEST_CASE("augmented images are a function of seed, epoch and index, and differ") {
  const Picture image = golden("image");
  const Transform transform{.rows = 16,
                            .columns = 16,
                            .fit = Transform::Fit::random_resized,
                            .random_flip = true,
                            .rand_augment = RandAugment{},
                            .color_jitter = ColorJitter{0.4, 0.4, 0.4, 0.1}};
  std::set<std::vector<std::uint8_t>> seen;
  for (std::int64_t i = 0; i < 100; ++i) {
    const Picture out = transformed(transform, image, i);
    CHECK(out.values == transformed(transform, image, i).values);
    seen.insert(out.values);
  }
  CHECK(seen.size() == 100);
  // Floats are the same, normalized.
  const Transformer transformer(transform, 3);
  std::vector<float> floats(static_cast<std::size_t>(transformer.values()));
  transformer.write(image.view(), SampleRandom(1, 2, 7), floats.data());
  const Picture bytes = transformed(transform, image, 7);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    CHECK(floats[i] == (static_cast<float>(bytes.values[i]) / 255.0F - 0.5F) / 0.5F);
  }
}

TEST_CASE("jitter stays within what was asked for, and reaches it") {
  Picture image{{100}, 1, 1, 1};
  int least = 255;
  int most = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    SampleRandom random(1, 1, i);
    image.values = {100};
    jitter_color(image.pixels(), {.brightness = 0.2}, random);
    least = std::min<int>(least, image.values[0]);
    most = std::max<int>(most, image.values[0]);
  }
  CHECK(least == 80);
  CHECK(most == 119);
}

TEST_CASE("augmentations that make no sense are refused") {
  const auto refusal = [](const Transform& t, std::int64_t channels) {
    return message_of<Error>([&] { Transformer(t, channels); });
  };
  Transform transform{.rows = 4, .columns = 4, .rand_augment = RandAugment{.magnitude = 31}};
  CHECK(contains(refusal(transform, 3), "magnitude below num_magnitude_bins"));
  transform.rand_augment = RandAugment{};
  CHECK(contains(refusal(transform, 2), "2 channels have no colours"));
  transform = {.rows = 4, .columns = 4, .color_jitter = ColorJitter{.hue = 0.7}};
  CHECK(contains(refusal(transform, 3), "hue must be from 0 to 0.5"));
  transform = {.rows = 4, .columns = 4, .fit = Transform::Fit::resize, .resize = 5};
  CHECK(contains(refusal(transform, 3), "are for Fit::exact"));
}

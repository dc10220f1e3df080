#include "trainer/data/augment.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {

void check(const ColorJitter& options) {
  for (const double value : {options.brightness, options.contrast, options.saturation}) {
    if (!(value >= 0)) {
      throw Error("color jitter: brightness, contrast and saturation must be at least 0");
    }
  }
  if (!(options.hue >= 0 && options.hue <= 0.5)) {
    throw Error("color jitter: hue must be from 0 to 0.5");
  }
}

void check(const RandAugment& options) {
  if (options.num_ops < 0 || options.num_magnitude_bins < 2 || options.magnitude < 0 ||
      options.magnitude >= options.num_magnitude_bins) {
    throw Error("rand augment: num_ops must be at least 0, and magnitude below num_magnitude_bins");
  }
}

void jitter_color(Pixels image, const ColorJitter& options, SampleRandom& random) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  const auto factor = [&](double most) {
    const double least = std::max(1 - most, 0.0);
    return least + (1 + most - least) * random.uniform();
  };
  for (const int step : order) {
    if (step == 0 && options.brightness > 0) adjust_brightness(image, factor(options.brightness));
    if (step == 1 && options.contrast > 0) adjust_contrast(image, factor(options.contrast));
    if (step == 2 && options.saturation > 0) adjust_saturation(image, factor(options.saturation));
    if (step == 3 && options.hue > 0) {
      adjust_hue(image, options.hue * (2 * random.uniform() - 1));
    }
  }
}

void augment(Pixels image, AugmentOp op, const RandAugment& options, bool other_way) {
  const double part =
      static_cast<double>(options.magnitude) / static_cast<double>(options.num_magnitude_bins - 1);
  const double sign = other_way ? -1 : 1;
  const double factor = 1 + sign * static_cast<float>(0.9 * part);  // in 32 bits, as there
  const auto rows = static_cast<double>(image.rows);
  const auto columns = static_cast<double>(image.columns);
  switch (op) {
    case AugmentOp::identity:
      return;
    case AugmentOp::shear_x:  // about the image's corner
      return affine(image, {.xy = sign * 0.3 * part, .x1 = sign * 0.3 * part * rows / 2});
    case AugmentOp::shear_y:
      return affine(image, {.yx = sign * 0.3 * part, .y1 = sign * 0.3 * part * columns / 2});
    case AugmentOp::translate_x:
      return affine(image, {.x1 = -sign * std::trunc(150.0 / 331.0 * columns * part)});
    case AugmentOp::translate_y:
      return affine(image, {.y1 = -sign * std::trunc(150.0 / 331.0 * rows * part)});
    case AugmentOp::rotate: {
      const double angle = sign * 30 * part * std::numbers::pi / 180;
      return affine(image, {.xx = std::cos(angle),
                            .xy = -std::sin(angle),
                            .yx = std::sin(angle),
                            .yy = std::cos(angle)});
    }
    case AugmentOp::brightness:
      return adjust_brightness(image, factor);
    case AugmentOp::color:
      return adjust_saturation(image, factor);
    case AugmentOp::contrast:
      return adjust_contrast(image, factor);
    case AugmentOp::sharpness:
      return adjust_sharpness(image, factor);
    case AugmentOp::posterize:
      return posterize(image, 8 - static_cast<int>(std::nearbyint(4 * part)));
    case AugmentOp::solarize:
      return solarize(image, 255 - 255 * part);
    case AugmentOp::auto_contrast:
      return autocontrast(image);
    case AugmentOp::equalize:
      return equalize(image);
  }
}

void rand_augment(Pixels image, const RandAugment& options, SampleRandom& random) {
  for (int i = 0; i < options.num_ops; ++i) {
    const auto op = static_cast<AugmentOp>(random.below(kAugmentOps));
    augment(image, op, options, random.coin());
  }
}

}  // namespace dtrain::train

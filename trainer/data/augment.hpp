#pragma once

#include <cstdint>

#include "trainer/data/color.hpp"
#include "trainer/data/random.hpp"

// Random changes of whole images, each a function of the sample's random numbers.
namespace dtrain::train {

// torchvision's ColorJitter: brightness, contrast and saturation by factors of 1 - x (at least 0)
// to 1 + x, hue by -x to x (at most 0.5) of the circle, in a random order. 0 leaves one out.
struct ColorJitter {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
};
void jitter_color(Pixels image, const ColorJitter& options, SampleRandom& random);

// torchvision's RandAugment: num_ops operations one after the other, each picked from the 14 with
// equal chances, at this magnitude of 0 to num_magnitude_bins - 1; what can go two ways goes either
// one time in two. What comes from outside of the image is black, and nothing is interpolated.
struct RandAugment {
  int num_ops = 2;
  int magnitude = 9;
  int num_magnitude_bins = 31;
};
void rand_augment(Pixels image, const RandAugment& options, SampleRandom& random);

// Its operations, in torchvision's order.
enum class AugmentOp : std::uint8_t {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  auto_contrast,
  equalize,
};
inline constexpr std::int64_t kAugmentOps = 14;
// One of them, as RandAugment does it: `other_way` turns the sign of what has one.
void augment(Pixels image, AugmentOp op, const RandAugment& options, bool other_way);

// Throw Error on values outside of what is said above.
void check(const ColorJitter& options);
void check(const RandAugment& options);

}  // namespace dtrain::train

#pragma once

#include <cstdint>
#include <string>

namespace dtrain::train {

// An image of 8-bit planes, one after the other, in memory of the caller's: what the functions
// below change in place. They compute what torchvision.transforms.v2.functional does of uint8
// tensors, for one channel or three (red, green, blue).
struct Pixels {
  std::uint8_t* data = nullptr;
  std::int64_t channels = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  std::int64_t plane() const { return rows * columns; }
  std::int64_t size() const { return channels * plane(); }
};

// Of a factor of 1 the image stays as it is. Negative ones are an Error.
void adjust_brightness(Pixels image, double factor);  // 0 is black
void adjust_contrast(Pixels image, double factor);    // 0 is its mean's grey
void adjust_saturation(Pixels image, double factor);  // 0 is grey
void adjust_sharpness(Pixels image, double factor);   // 0 is smooth
void adjust_hue(Pixels image, double turn);           // -0.5 to 0.5 of the whole circle

void posterize(Pixels image, int bits);         // keeps that many of each value's 8
void solarize(Pixels image, double threshold);  // inverts values from there on
void autocontrast(Pixels image);                // each channel from 0 to 255
void equalize(Pixels image);                    // each channel's histogram made even

// Each output pixel (column x, row y; counted from the middle of the image) is the one nearest to
// (xx x + xy y + x1, yx x + yy y + y1), or black where that is outside.
struct Affine {
  double xx = 1, xy = 0, x1 = 0;
  double yx = 0, yy = 1, y1 = 0;
};
void affine(Pixels image, const Affine& from);

}  // namespace dtrain::train

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// Pixels with a memory of their own, one pixel after the other: 1 channel (grey) or 3 (RGB).
struct Image {
  std::int64_t channels = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> pixels;

  ImageView view() const { return ImageView::interleaved(pixels.data(), channels, rows, columns); }
};

// No image that decode_image takes has a larger file.
constexpr std::size_t kMostImageBytes = std::size_t{1} << 30;

// Decodes a JPEG (libjpeg-turbo) or a PNG (libpng), told apart by their first bytes, to RGB, into
// `pixels`, and returns a view of them. Of a JPEG in CMYK or YCCK the inks are taken as Adobe
// writes them, inverted, as Pillow and torchvision do. Of a PNG the values are those in the file,
// of 16 bits the upper 8, whatever it says about gamma; transparent parts are laid on black. A JPEG
// is decoded at 1/2, 1/4 or 1/8 of its size where the shorter side stays at least `least` (above
// 0), which is several times as fast. Throws Error on anything else, on a damaged file, and on more
// than 2^28 pixels; bytes from a stranger can do no more harm than that.
ImageView decode_image(std::span<const std::byte> bytes, std::vector<std::uint8_t>& pixels,
                       std::int64_t least = 0);

std::vector<std::byte> encode_png(const ImageView& image);
std::vector<std::byte> encode_jpeg(const ImageView& image, int quality = 90);

// True for the names of files that decode_image can be expected to read: what is behind the last
// dot is jpg, jpeg or png, in any case.
bool is_image_ending(std::string ending);
bool has_image_name(const std::string& name);

}  // namespace dtrain::train

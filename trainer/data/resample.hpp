#pragma once

#include <cstdint>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// A part of an image, in its pixels. Sides may lie between two pixels.
struct Box {
  double row = 0;
  double column = 0;
  double rows = 0;
  double columns = 0;
};

// The part alone, whose sides lie between pixels: an image that ends there.
ImageView cut(const ImageView& image, std::int64_t row, std::int64_t column, std::int64_t rows,
              std::int64_t columns);

// Scales a part of an image to `rows` x `columns`, bilinear and antialiased as Pillow's
// resize(BILINEAR, box) and torchvision's Resize: along columns, then along rows, each output the
// mean of the pixels that it covers, weighted by a triangle as wide as the scale. Within
// one level of theirs. At the part's sides, what is beyond them counts as well.
//
// `out` has room for `channels` planes; a grey image fills each of them. With `flip` right and left
// are changed.
void resample(const ImageView& image, const Box& part, std::int64_t channels, std::int64_t rows,
              std::int64_t columns, bool flip, std::uint8_t* out);

}  // namespace dtrain::train

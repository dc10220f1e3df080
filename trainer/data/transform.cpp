#include "trainer/data/transform.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "trainer/data/resample.hpp"

namespace dtrain::train {
namespace {

// The largest part of the wanted shape, in the middle.
Box middle(const ImageView& image, double shape) {
  Box box;
  box.columns =
      std::min(static_cast<double>(image.columns), static_cast<double>(image.rows) * shape);
  box.rows = box.columns / shape;
  box.row = (static_cast<double>(image.rows) - box.rows) / 2;
  box.column = (static_cast<double>(image.columns) - box.columns) / 2;
  return box;
}

// As RandomResizedCrop: where ten trials find no part that fits, the middle, of sides as near to
// 3:4 to 4:3 as the image has them.
ImageView random_part(const ImageView& image, SampleRandom& random) {
  const auto rows = static_cast<double>(image.rows);
  const auto columns = static_cast<double>(image.columns);
  for (int trial = 0; trial < 10; ++trial) {
    const double area = rows * columns * (0.08 + 0.92 * random.uniform());
    const double ratio = std::exp(std::log(0.75) + random.uniform() * std::log(16.0 / 9.0));
    const std::int64_t wide = std::lround(std::sqrt(area * ratio));
    const std::int64_t high = std::lround(std::sqrt(area / ratio));
    if (wide < 1 || high < 1 || wide > image.columns || high > image.rows) continue;
    const std::int64_t row = random.below(image.rows - high + 1);
    return cut(image, row, random.below(image.columns - wide + 1), high, wide);
  }
  const double shape = std::clamp(columns / rows, 3.0 / 4.0, 4.0 / 3.0);
  const Box box = middle(image, shape);
  const std::int64_t high = std::clamp<std::int64_t>(std::lround(box.rows), 1, image.rows);
  const std::int64_t wide = std::clamp<std::int64_t>(std::lround(box.columns), 1, image.columns);
  return cut(image, (image.rows - high) / 2, (image.columns - wide) / 2, high, wide);
}

// Resize(shorter): torchvision rounds the longer side down.
std::pair<std::int64_t, std::int64_t> resized(const ImageView& image, std::int64_t shorter) {
  const bool wide = image.rows <= image.columns;
  const std::int64_t longer =
      shorter * std::max(image.rows, image.columns) / std::min(image.rows, image.columns);
  return wide ? std::pair(shorter, longer) : std::pair(longer, shorter);
}

// CenterCrop: what is left over, halved; a half goes to the even number.
std::int64_t half(std::int64_t spare) {
  return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(spare) / 2));
}

}  // namespace

Transformer::Transformer(const Transform& transform, std::int64_t channels)
    : transform_(transform), channels_(channels) {
  const Transform& t = transform_;
  constexpr std::int64_t kLongestSide = 65536;
  if (t.rows < 1 || t.columns < 1 || t.rows > kLongestSide || t.columns > kLongestSide ||
      t.pad < 0 || t.pad > kLongestSide || t.resize < 0 || t.resize > kLongestSide ||
      channels < 1) {
    throw Error("transform: images of " + std::to_string(channels) + "x" + std::to_string(t.rows) +
                "x" + std::to_string(t.columns) + " with a padding of " + std::to_string(t.pad) +
                " are not possible");
  }
  if (t.fit != Transform::Fit::exact && (t.resize > 0 || t.pad > 0 || t.random_crop)) {
    throw Error("transform: resize, pad and random_crop are for Fit::exact");
  }
  if (t.rand_augment) check(*t.rand_augment);
  if (t.color_jitter) check(*t.color_jitter);
  if ((t.rand_augment || t.color_jitter) && channels != 1 && channels != 3) {
    throw Error("transform: images of " + std::to_string(channels) +
                " channels have no colours to change: 1 or 3 are possible");
  }
  const auto value = [&](const std::vector<float>& values, std::int64_t channel) {
    if (values.size() != 1 && values.size() != static_cast<std::size_t>(channels)) {
      throw Error("transform: mean and std need one value, or one for each of " +
                  std::to_string(channels) + " channels");
    }
    return values[values.size() == 1 ? 0 : static_cast<std::size_t>(channel)];
  };
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const float mean = value(t.mean, channel);
    const float deviation = value(t.std, channel);
    if (!(deviation > 0)) throw Error("transform: std must be above 0");
    std::array<float, 256> table{};
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = (static_cast<float>(i) / 255.0F - mean) / deviation;
    }
    tables_.push_back(table);
  }
}

std::int64_t Transformer::least() const {
  switch (transform_.fit) {
    case Transform::Fit::exact:
      return 2 * transform_.resize;
    case Transform::Fit::resize:
      return std::max(transform_.rows, transform_.columns);
    case Transform::Fit::random_resized:
      break;  // of a small part little may be left out
  }
  return 2 * std::max(transform_.rows, transform_.columns);
}

namespace {

// `count` bytes from the last to the first, eight at a time.
void copy_reversed(std::uint8_t* to, const std::uint8_t* from, std::int64_t count) {
  std::int64_t left = count;
  for (; left >= 8; left -= 8, to += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, from + left - 8, 8);
    eight = __builtin_bswap64(eight);
    std::memcpy(to, &eight, 8);
  }
  while (left > 0) *to++ = from[--left];
}

// Pixels that lie one after the other and stay as they are.
struct AsTheyAre {
  std::uint8_t operator()(std::uint8_t value) const { return value; }
};

// One row's pixels, `stride` apart.
template <typename Value, typename Pixel>
void write_row(Value* to, const std::uint8_t* from, std::int64_t count, std::int64_t stride,
               bool flip, const Pixel& pixel) {
  if constexpr (std::is_same_v<Pixel, AsTheyAre>) {
    if (stride == 1) {
      if (flip) {
        copy_reversed(to, from, count);
      } else {
        std::memcpy(to, from, static_cast<std::size_t>(count));
      }
      return;
    }
  }
  if (flip) {
    for (std::int64_t i = count - 1; i >= 0; --i) *to++ = pixel(from[i * stride]);
  } else if (stride == 1) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {  // one load for eight
      std::uint64_t eight = 0;
      std::memcpy(&eight, from + i, 8);
      if constexpr (std::endian::native == std::endian::big) eight = __builtin_bswap64(eight);
      to[i] = pixel(static_cast<std::uint8_t>(eight));
      to[i + 1] = pixel(static_cast<std::uint8_t>(eight >> 8));
      to[i + 2] = pixel(static_cast<std::uint8_t>(eight >> 16));
      to[i + 3] = pixel(static_cast<std::uint8_t>(eight >> 24));
      to[i + 4] = pixel(static_cast<std::uint8_t>(eight >> 32));
      to[i + 5] = pixel(static_cast<std::uint8_t>(eight >> 40));
      to[i + 6] = pixel(static_cast<std::uint8_t>(eight >> 48));
      to[i + 7] = pixel(static_cast<std::uint8_t>(eight >> 56));
    }
    for (; i < count; ++i) to[i] = pixel(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = pixel(from[i * stride]);
  }
}

template <typename Value, typename Convert>
void write_planes(const std::uint8_t* from, std::int64_t channels, std::int64_t size, Value* out,
                  const Convert& convert) {
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    write_row(out + channel * size, from + channel * size, size, 1, false, convert(channel));
  }
}

}  // namespace

template <typename Value, typename Convert>
void Transformer::write_as(const ImageView& image, SampleRandom random, Value* out,
                           const Convert& convert) const {
  const Transform& t = transform_;
  if (image.channels != channels_ && image.channels != 1) {
    throw Error("has " + std::to_string(image.channels) + " channels, not " +
                std::to_string(channels_));
  }
  if (!t.rand_augment && !t.color_jitter) {
    fit(image, random, out, convert);
    return;
  }
  thread_local std::vector<std::uint8_t> whole;
  whole.resize(static_cast<std::size_t>(values()));
  fit(image, random, whole.data(), [](std::int64_t) { return AsTheyAre{}; });
  const Pixels pixels{whole.data(), channels_, t.rows, t.columns};
  if (t.rand_augment) rand_augment(pixels, *t.rand_augment, random);
  if (t.color_jitter) jitter_color(pixels, *t.color_jitter, random);
  write_planes(whole.data(), channels_, t.rows * t.columns, out, convert);
}

template <typename Value, typename Convert>
void Transformer::fit(const ImageView& image, SampleRandom& random, Value* out,
                      const Convert& convert) const {
  const Transform& t = transform_;
  const bool flip = t.random_flip && random.coin();
  if (t.fit == Transform::Fit::exact && t.resize == 0) {
    crop(image, flip, random, out, convert);
    return;
  }
  thread_local std::vector<std::uint8_t> scaled;
  const auto all = [](const ImageView& view) {
    return Box{0, 0, static_cast<double>(view.rows), static_cast<double>(view.columns)};
  };
  if (t.fit == Transform::Fit::exact) {
    const auto [rows, columns] = resized(image, t.resize);
    if (rows * columns > kMostPixels) {
      throw Error("is " + std::to_string(image.rows) + "x" + std::to_string(image.columns) +
                  ", too thin to be scaled to a shorter side of " + std::to_string(t.resize));
    }
    scaled.resize(static_cast<std::size_t>(channels_ * rows * columns));
    resample(image, all(image), channels_, rows, columns, false, scaled.data());
    crop(ImageView::planar(scaled.data(), channels_, rows, columns), flip, random, out, convert);
    return;
  }
  const bool part = t.fit == Transform::Fit::random_resized;
  const ImageView from = part ? random_part(image, random) : image;
  const double shape = static_cast<double>(t.columns) / static_cast<double>(t.rows);
  const Box box = part ? all(from) : middle(image, shape);
  if constexpr (std::is_same_v<Value, std::uint8_t>) {
    resample(from, box, channels_, t.rows, t.columns, flip, out);
  } else {
    scaled.resize(static_cast<std::size_t>(values()));
    resample(from, box, channels_, t.rows, t.columns, flip, scaled.data());
    write_planes(scaled.data(), channels_, t.rows * t.columns, out, convert);
  }
}

// Cuts, with padding.
template <typename Value, typename Convert>
void Transformer::crop(const ImageView& image, bool flip, SampleRandom& random, Value* out,
                       const Convert& convert) const {
  const Transform& t = transform_;
  const std::int64_t channel_stride = image.channels == 1 ? 0 : image.channel_stride;
  const std::int64_t spare_rows = image.rows + 2 * t.pad - t.rows;
  const std::int64_t spare_columns = image.columns + 2 * t.pad - t.columns;
  if (spare_rows < 0 || spare_columns < 0) {
    throw Error("is " + std::to_string(image.rows) + "x" + std::to_string(image.columns) +
                ", too small for " + std::to_string(t.rows) + "x" + std::to_string(t.columns));
  }
  // The output's first row and column, in the image's: negative ones are padding.
  const std::int64_t top =
      (t.random_crop ? random.below(spare_rows + 1) : half(spare_rows)) - t.pad;
  const std::int64_t left =
      (t.random_crop ? random.below(spare_columns + 1) : half(spare_columns)) - t.pad;
  // The columns of the image that are seen, and the padding on both sides of them.
  const std::int64_t first = std::max<std::int64_t>(left, 0);
  const std::int64_t last = std::max(std::min(left + t.columns, image.columns), first);
  const std::int64_t before = std::min(first - left, t.columns);
  const std::int64_t after = t.columns - before - (last - first);
  const bool whole_rows = !flip && image.column_stride == 1 && image.row_stride == t.columns &&
                          left == 0 && last == t.columns && top >= 0 && top + t.rows <= image.rows;
  for (std::int64_t channel = 0; channel < channels_; ++channel) {
    const auto pixel = convert(channel);
    const Value black = pixel(0);
    if constexpr (std::is_same_v<Value, std::uint8_t>) {
      if (whole_rows) {
        const auto size = static_cast<std::size_t>(t.rows * t.columns);
        std::memcpy(out, image.pixels + channel * channel_stride + top * image.row_stride, size);
        out += size;
        continue;
      }
    }
    for (std::int64_t r = 0; r < t.rows; ++r, out += t.columns) {
      const std::int64_t row = top + r;
      if (row < 0 || row >= image.rows) {
        std::fill_n(out, t.columns, black);
        continue;
      }
      const std::uint8_t* from = image.pixels + channel * channel_stride + row * image.row_stride +
                                 first * image.column_stride;
      Value* to = out;
      std::fill_n(to, flip ? after : before, black);
      to += flip ? after : before;
      write_row(to, from, last - first, image.column_stride, flip, pixel);
      to += last - first;
      std::fill_n(to, flip ? before : after, black);
    }
  }
}

void Transformer::write(const ImageView& image, SampleRandom random, float* out) const {
  write_as(image, random, out, [this](std::int64_t channel) {
    const float* table = tables_[static_cast<std::size_t>(channel)].data();
    return [table](std::uint8_t value) { return table[value]; };
  });
}

void Transformer::write(const ImageView& image, SampleRandom random, std::uint8_t* out) const {
  write_as(image, random, out, [](std::int64_t) { return AsTheyAre{}; });
}

}  // namespace dtrain::train

#include "trainer/data/transform.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

namespace dtrain::train {
namespace {

// A part of an image, in its pixels.
struct Box {
  double row = 0;
  double column = 0;
  double rows = 0;
  double columns = 0;
};

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

Box random_part(const ImageView& image, double shape, SampleRandom& random) {
  const auto rows = static_cast<double>(image.rows);
  const auto columns = static_cast<double>(image.columns);
  for (int trial = 0; trial < 10; ++trial) {
    const double area = rows * columns * (0.08 + 0.92 * random.uniform());
    const double ratio = std::exp(std::log(0.75) + random.uniform() * std::log(16.0 / 9.0));
    Box box;
    box.columns = std::round(std::sqrt(area * ratio));
    box.rows = std::round(std::sqrt(area / ratio));
    if (box.columns < 1 || box.rows < 1 || box.columns > columns || box.rows > rows) continue;
    box.row = static_cast<double>(random.below(static_cast<std::int64_t>(rows - box.rows) + 1));
    box.column =
        static_cast<double>(random.below(static_cast<std::int64_t>(columns - box.columns) + 1));
    return box;
  }
  return middle(image, shape);
}

// Where an output's row (or column) lies between two of the image's, in 256ths.
struct Tap {
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::int32_t weight = 0;  // of the second
};

std::vector<Tap> taps(double begin, double length, std::int64_t outputs, std::int64_t inputs,
                      bool reversed) {
  std::vector<Tap> result(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < outputs; ++i) {
    const double at =
        begin + (static_cast<double>(i) + 0.5) * length / static_cast<double>(outputs) - 0.5;
    const double inside = std::clamp(at, 0.0, static_cast<double>(inputs - 1));
    Tap tap;
    tap.first = static_cast<std::int64_t>(inside);
    tap.second = std::min(tap.first + 1, inputs - 1);
    tap.weight =
        static_cast<std::int32_t>(std::lround((inside - static_cast<double>(tap.first)) * 256));
    result[static_cast<std::size_t>(reversed ? outputs - 1 - i : i)] = tap;
  }
  return result;
}

}  // namespace

Transformer::Transformer(const Transform& transform, std::int64_t channels)
    : transform_(transform), channels_(channels) {
  const Transform& t = transform_;
  constexpr std::int64_t kLongestSide = 65536;
  if (t.rows < 1 || t.columns < 1 || t.rows > kLongestSide || t.columns > kLongestSide ||
      t.pad < 0 || t.pad > kLongestSide || channels < 1) {
    throw Error("transform: images of " + std::to_string(channels) + "x" + std::to_string(t.rows) +
                "x" + std::to_string(t.columns) + " with a padding of " + std::to_string(t.pad) +
                " are not possible");
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
      return 0;
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

}  // namespace

template <typename Value, typename Convert>
void Transformer::write_as(const ImageView& image, SampleRandom random, Value* out,
                           const Convert& convert) const {
  const Transform& t = transform_;
  if (image.channels != channels_ && image.channels != 1) {
    throw Error("has " + std::to_string(image.channels) + " channels, not " +
                std::to_string(channels_));
  }
  const bool flip = t.random_flip && random.coin();
  const std::int64_t channel_stride = image.channels == 1 ? 0 : image.channel_stride;

  if (t.fit != Transform::Fit::exact) {
    const double shape = static_cast<double>(t.columns) / static_cast<double>(t.rows);
    const Box box =
        t.fit == Transform::Fit::resize ? middle(image, shape) : random_part(image, shape, random);
    const std::vector<Tap> rows = taps(box.row, box.rows, t.rows, image.rows, false);
    const std::vector<Tap> columns = taps(box.column, box.columns, t.columns, image.columns, flip);
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      const std::uint8_t* plane = image.pixels + channel * channel_stride;
      const auto pixel = convert(channel);
      for (const Tap& row : rows) {
        const std::uint8_t* above = plane + row.first * image.row_stride;
        const std::uint8_t* below = plane + row.second * image.row_stride;
        for (const Tap& column : columns) {
          const std::int64_t left = column.first * image.column_stride;
          const std::int64_t right = column.second * image.column_stride;
          const std::int32_t up =
              above[left] * (256 - column.weight) + above[right] * column.weight;
          const std::int32_t down =
              below[left] * (256 - column.weight) + below[right] * column.weight;
          const std::int32_t sum = up * (256 - row.weight) + down * row.weight;
          *out++ = pixel(static_cast<std::uint8_t>((sum + (1 << 15)) >> 16));
        }
      }
    }
    return;
  }

  const std::int64_t spare_rows = image.rows + 2 * t.pad - t.rows;
  const std::int64_t spare_columns = image.columns + 2 * t.pad - t.columns;
  if (spare_rows < 0 || spare_columns < 0) {
    throw Error("is " + std::to_string(image.rows) + "x" + std::to_string(image.columns) +
                ", too small for " + std::to_string(t.rows) + "x" + std::to_string(t.columns));
  }
  // The output's first row and column, in the image's: negative ones are padding.
  const std::int64_t top = (t.random_crop ? random.below(spare_rows + 1) : spare_rows / 2) - t.pad;
  const std::int64_t left =
      (t.random_crop ? random.below(spare_columns + 1) : spare_columns / 2) - t.pad;
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

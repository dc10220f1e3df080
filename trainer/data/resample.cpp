#include "trainer/data/resample.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dtrain::train {
namespace {

constexpr int kBits = 32 - 8 - 2;  // of a weight's fraction: 255 of them stay within 32 bits
constexpr std::int32_t kHalf = 1 << (kBits - 1);

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255));
}

// For each output along one side: its first input and the weights from there on, each output with
// room for as many.
struct Weights {
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> count;
  std::vector<std::int32_t> values;
  std::int64_t room = 0;

  const std::int32_t* of(std::int64_t output) const { return &values[output * room]; }
};

Weights weights(double begin, double length, std::int64_t inputs, std::int64_t outputs) {
  const double scale = length / static_cast<double>(outputs);
  const double support = std::max(scale, 1.0);
  Weights result;
  result.room = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  result.values.resize(static_cast<std::size_t>(outputs * result.room));
  std::vector<double> exact(static_cast<std::size_t>(result.room));
  for (std::int64_t output = 0; output < outputs; ++output) {
    const double center = begin + (static_cast<double>(output) + 0.5) * scale;
    const std::int64_t first =
        std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
    const std::int64_t end = std::min(static_cast<std::int64_t>(center + support + 0.5), inputs);
    double sum = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const double away = std::abs((static_cast<double>(i) - center + 0.5) / support);
      sum += exact[static_cast<std::size_t>(i - first)] = std::max(1.0 - away, 0.0);
    }
    for (std::int64_t i = 0; i < end - first; ++i) {
      const double weight = exact[static_cast<std::size_t>(i)] / sum;
      result.values[static_cast<std::size_t>(output * result.room + i)] =
          static_cast<std::int32_t>(0.5 + weight * (1 << kBits));
    }
    result.first.push_back(first);
    result.count.push_back(end - first);
  }
  return result;
}

}  // namespace

ImageView cut(const ImageView& image, std::int64_t row, std::int64_t column, std::int64_t rows,
              std::int64_t columns) {
  ImageView part = image;
  part.pixels += row * image.row_stride + column * image.column_stride;
  part.rows = rows;
  part.columns = columns;
  return part;
}

void resample(const ImageView& image, const Box& part, std::int64_t channels, std::int64_t rows,
              std::int64_t columns, bool flip, std::uint8_t* out) {
  const Weights across = weights(part.column, part.columns, image.columns, columns);
  const Weights down = weights(part.row, part.rows, image.rows, rows);
  // The rows that any output needs, scaled along their columns.
  const std::int64_t top = down.first.front();
  const std::int64_t height = down.first.back() + down.count.back() - top;
  thread_local std::vector<std::uint8_t> narrow;
  thread_local std::vector<std::int32_t> sums;
  narrow.resize(static_cast<std::size_t>(height * columns));
  sums.resize(static_cast<std::size_t>(columns));
  for (std::int64_t channel = 0; channel < channels; ++channel, out += rows * columns) {
    if (channel > 0 && image.channels == 1) {
      std::copy_n(out - rows * columns, rows * columns, out);
      continue;
    }
    std::uint8_t* to = narrow.data();
    for (std::int64_t row = top; row < top + height; ++row, to += columns) {
      const std::uint8_t* from =
          image.pixels + channel * image.channel_stride + row * image.row_stride;
      for (std::int64_t column = 0; column < columns; ++column) {
        const auto at = static_cast<std::size_t>(column);
        const std::int32_t* weight = across.of(column);
        const std::uint8_t* pixel = from + across.first[at] * image.column_stride;
        std::int32_t sum = kHalf;
        for (std::int64_t i = 0; i < across.count[at]; ++i, pixel += image.column_stride) {
          sum += weight[i] * *pixel;
        }
        to[flip ? columns - 1 - column : column] = to_byte(sum);
      }
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row);
      std::fill(sums.begin(), sums.end(), kHalf);
      for (std::int64_t i = 0; i < down.count[at]; ++i) {
        const std::int32_t weight = down.of(row)[i];
        const std::uint8_t* from = &narrow[(down.first[at] - top + i) * columns];
        for (std::int64_t column = 0; column < columns; ++column) {
          sums[static_cast<std::size_t>(column)] += weight * from[column];
        }
      }
      std::transform(sums.begin(), sums.end(), out + row * columns, to_byte);
    }
  }
}

}  // namespace dtrain::train

#include "trainer/data/resample.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace dtrain::train {
namespace {

constexpr int kBits = 32 - 8 - 2;  // of a weight's fraction: 255 of them stay within 32 bits
constexpr std::int32_t kHalf = 1 << (kBits - 1);

std::uint8_t byte_of_sum(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::min(sum >> kBits, 255));
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
    // NOLINTBEGIN(bugprone-incorrect-roundings): as Pillow rounds, bit for bit
    const std::int64_t first =
        std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
    const std::int64_t end = std::min(static_cast<std::int64_t>(center + support + 0.5), inputs);
    // NOLINTEND(bugprone-incorrect-roundings)
    double sum = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const double away = std::abs((static_cast<double>(i) - center + 0.5) / support);
      sum += exact[static_cast<std::size_t>(i - first)] = std::max(1.0 - away, 0.0);
    }
    for (std::int64_t i = 0; i < end - first; ++i) {
      const double weight = exact[static_cast<std::size_t>(i)] / sum;
      result.values[static_cast<std::size_t>(output * result.room + i)] =
          // NOLINTNEXTLINE(bugprone-incorrect-roundings): as above
          static_cast<std::int32_t>(0.5 + weight * (1 << kBits));
    }
    result.first.push_back(first);
    result.count.push_back(end - first);
  }
  return result;
}

// One row along its columns: a plane, or three channels that lie side by side, each to its plane.
void narrow_plane(const std::uint8_t* from, std::int64_t stride, const Weights& across, bool flip,
                  std::uint8_t* to) {
  const auto columns = static_cast<std::int64_t>(across.first.size());
  for (std::int64_t column = 0; column < columns; ++column) {
    const auto at = static_cast<std::size_t>(column);
    const std::int32_t* weight = across.of(column);
    const std::int32_t* const end = weight + across.count[at];
    std::int32_t sum = kHalf;
    for (const std::uint8_t* pixel = from + across.first[at] * stride; weight < end;
         pixel += stride) {
      sum += *weight++ * *pixel;
    }
    to[flip ? columns - 1 - column : column] = byte_of_sum(sum);
  }
}

void narrow_three(const std::uint8_t* from, std::int64_t stride, const Weights& across, bool flip,
                  std::uint8_t* to, std::int64_t plane) {
  const auto columns = static_cast<std::int64_t>(across.first.size());
  for (std::int64_t column = 0; column < columns; ++column) {
    const auto at = static_cast<std::size_t>(column);
    const std::int32_t* weight = across.of(column);
    const std::int32_t* const end = weight + across.count[at];
    std::int32_t red = kHalf;
    std::int32_t green = kHalf;
    std::int32_t blue = kHalf;
    for (const std::uint8_t* pixel = from + across.first[at] * stride; weight < end;
         pixel += stride) {
      const std::int32_t one = *weight++;
      red += one * pixel[0];
      green += one * pixel[1];
      blue += one * pixel[2];
    }
    std::uint8_t* out = to + (flip ? columns - 1 - column : column);
    out[0] = byte_of_sum(red);
    out[plane] = byte_of_sum(green);
    out[2 * plane] = byte_of_sum(blue);
  }
}

// One output row, of rows that lie `stride` apart and may be read and written up to a multiple of
// kLanes columns. With SSE2 by weights of 14 bits, two rows at once: where many rows add up, a
// value may come out one level off.
constexpr std::int64_t kLanes = 16;

#ifdef __SSE2__
void blend_rows(const std::uint8_t* from, std::int64_t stride, const std::int32_t* weights,
                std::int64_t count, std::int64_t columns, std::uint8_t* out) {
  constexpr int kShort = 14;
  const __m128i zero = _mm_setzero_si128();
  for (std::int64_t column = 0; column < columns; column += kLanes) {
    const std::uint8_t* row = from + column;
    __m128i sums[4];
    std::fill_n(sums, 4, _mm_set1_epi32(1 << (kShort - 1)));
    for (std::int64_t i = 0; i < count; i += 2, row += 2 * stride) {
      const auto rounded = [&](std::int64_t at) {
        return at < count ? (weights[at] + (1 << (kBits - kShort - 1))) >> (kBits - kShort) : 0;
      };
      const __m128i pair = _mm_set1_epi32(rounded(i) | rounded(i + 1) << 16);
      const __m128i one = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
      const __m128i two =
          i + 1 < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + stride)) : zero;
      const __m128i low = _mm_unpacklo_epi8(one, two);
      const __m128i high = _mm_unpackhi_epi8(one, two);
      const auto add = [&](__m128i& sum, __m128i values) {
        sum = _mm_add_epi32(sum, _mm_madd_epi16(values, pair));
      };
      add(sums[0], _mm_unpacklo_epi8(low, zero));
      add(sums[1], _mm_unpackhi_epi8(low, zero));
      add(sums[2], _mm_unpacklo_epi8(high, zero));
      add(sums[3], _mm_unpackhi_epi8(high, zero));
    }
    const auto halves = [&](int i) {
      return _mm_packs_epi32(_mm_srai_epi32(sums[i], kShort), _mm_srai_epi32(sums[i + 1], kShort));
    };
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + column),
                     _mm_packus_epi16(halves(0), halves(2)));
  }
}
#else
void blend_rows(const std::uint8_t* from, std::int64_t stride, const std::int32_t* weights,
                std::int64_t count, std::int64_t columns, std::uint8_t* out) {
  for (std::int64_t column = 0; column < columns; ++column) {
    std::int32_t sum = kHalf;
    for (std::int64_t i = 0; i < count; ++i) sum += weights[i] * from[i * stride + column];
    out[column] = byte_of_sum(sum);
  }
}
#endif

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
  const std::int64_t stride = (columns + kLanes - 1) / kLanes * kLanes;
  const std::int64_t plane = height * stride;
  const std::int64_t planes = image.channels == 1 ? 1 : channels;
  narrow.resize(static_cast<std::size_t>(planes * plane));
  const bool together = planes == 3 && image.channel_stride == 1;
  for (std::int64_t row = 0; row < height; ++row) {
    const std::uint8_t* from = image.pixels + (top + row) * image.row_stride;
    std::uint8_t* to = narrow.data() + row * stride;
    if (together) {
      narrow_three(from, image.column_stride, across, flip, to, plane);
      continue;
    }
    for (std::int64_t channel = 0; channel < planes; ++channel, to += plane) {
      narrow_plane(from + channel * image.channel_stride, image.column_stride, across, flip, to);
    }
  }
  thread_local std::vector<std::uint8_t> line;
  line.resize(static_cast<std::size_t>(stride));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    if (channel >= planes) {  // grey
      std::copy_n(out - rows * columns, rows * columns, out);
      out += rows * columns;
      continue;
    }
    for (std::int64_t row = 0; row < rows; ++row, out += columns) {
      const auto at = static_cast<std::size_t>(row);
      const std::uint8_t* from = narrow.data() + channel * plane + (down.first[at] - top) * stride;
      blend_rows(from, stride, down.of(row), down.count[at], columns, line.data());
      std::copy_n(line.data(), columns, out);
    }
  }
}

}  // namespace dtrain::train

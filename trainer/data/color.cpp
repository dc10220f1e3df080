#include "trainer/data/color.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

void check(const char* what, const Pixels& image, bool fits) {
  if (!fits) throw Error(std::string(what) + ": the factor is outside of what is possible");
  if (image.channels != 1 && image.channels != 3) {
    throw Error(std::string(what) + ": an image of " + std::to_string(image.channels) +
                " channels has no colours: 1 or 3 are possible");
  }
}

std::uint8_t to_byte(float value) {  // cut, not rounded, as there
  return static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F));
}

// A value for each of the 256.
using Table = std::array<std::uint8_t, 256>;

void apply(std::uint8_t* values, std::int64_t count, const Table& table) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = table[values[i]];
}

template <typename Function>
Table table_of(const Function& function) {
  Table table{};
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = function(static_cast<float>(i));
  return table;
}

float grey(const Pixels& image, std::int64_t pixel) {
  if (image.channels == 1) return image.data[pixel];
  return std::floor(0.2989F * image.data[pixel] + 0.587F * image.data[image.plane() + pixel] +
                    0.114F * image.data[2 * image.plane() + pixel]);
}

float blend(float one, float other, double ratio) {
  return one * static_cast<float>(ratio) + other * static_cast<float>(1 - ratio);
}

}  // namespace

void adjust_brightness(Pixels image, double factor) {
  check("adjust_brightness", image, factor >= 0);
  apply(image.data, image.size(),
        table_of([&](float value) { return to_byte(value * static_cast<float>(factor)); }));
}

void adjust_contrast(Pixels image, double factor) {
  check("adjust_contrast", image, factor >= 0);
  double sum = 0;
  for (std::int64_t i = 0; i < image.plane(); ++i) sum += grey(image, i);
  const auto mean = static_cast<float>(sum / static_cast<double>(image.plane()));
  apply(image.data, image.size(),
        table_of([&](float value) { return to_byte(blend(value, mean, factor)); }));
}

void adjust_saturation(Pixels image, double factor) {
  check("adjust_saturation", image, factor >= 0);
  if (image.channels == 1) return;
  for (std::int64_t i = 0; i < image.plane(); ++i) {
    const float of_pixel = grey(image, i);
    for (std::uint8_t* value = image.data + i; value < image.data + image.size();
         value += image.plane()) {
      *value = to_byte(blend(*value, of_pixel, factor));
    }
  }
}

void adjust_sharpness(Pixels image, double factor) {
  check("adjust_sharpness", image, factor >= 0);
  if (image.rows <= 2 || image.columns <= 2) return;
  const std::vector<std::uint8_t> before(image.data, image.data + image.size());
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    for (std::int64_t row = 1; row < image.rows - 1; ++row) {
      for (std::int64_t column = 1; column < image.columns - 1; ++column) {
        const std::int64_t at = channel * image.plane() + row * image.columns + column;
        int sum = 4 * before[static_cast<std::size_t>(at)];
        for (std::int64_t down = -1; down <= 1; ++down) {
          for (std::int64_t right = -1; right <= 1; ++right) {
            sum += before[static_cast<std::size_t>(at + down * image.columns + right)];
          }
        }
        const float smooth = std::nearbyint(static_cast<float>(sum) / 13.0F);
        const float value = before[static_cast<std::size_t>(at)];
        image.data[at] = to_byte(value + static_cast<float>(1 - factor) * (smooth - value));
      }
    }
  }
}

void adjust_hue(Pixels image, double turn) {
  check("adjust_hue", image, turn >= -0.5 && turn <= 0.5);
  if (image.channels == 1) return;
  const auto to_value = [](float part) {
    return static_cast<std::uint8_t>(std::clamp(part, 0.0F, 1.0F) * (256.0F - 1e-3F));
  };
  for (std::int64_t i = 0; i < image.plane(); ++i) {
    std::uint8_t* const red = image.data + i;
    std::uint8_t* const green = red + image.plane();
    std::uint8_t* const blue = green + image.plane();
    const float r = static_cast<float>(*red) / 255.0F;
    const float g = static_cast<float>(*green) / 255.0F;
    const float b = static_cast<float>(*blue) / 255.0F;
    const float most = std::max({r, g, b});
    const float range = most - std::min({r, g, b});
    const float divisor = range == 0 ? 1.0F : range;
    const float saturation = range / (range == 0 ? 1.0F : most);
    const float from_red = (most - r) / divisor;
    const float from_green = (most - g) / divisor;
    const float from_blue = (most - b) / divisor;
    float hue = 0;
    if (most == r) {
      hue = from_blue - from_green;
    } else if (most == g) {
      hue = 2 + from_red - from_blue;
    } else {
      hue = 4 + from_green - from_red;
    }
    hue = std::fmod(hue / 6 + 1, 1.0F) + static_cast<float>(turn);
    hue -= std::floor(hue);
    const float sixth = std::floor(hue * 6);
    const float inside = hue * 6 - sixth;
    const std::uint8_t v = to_value(most);
    const std::uint8_t p = to_value((1 - saturation) * most);
    const std::uint8_t q = to_value((1 - saturation * inside) * most);
    const std::uint8_t t = to_value((1 - saturation + saturation * inside) * most);
    const std::array<std::array<std::uint8_t, 3>, 6> by_sixth{
        {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
    const auto& colour = by_sixth[static_cast<std::size_t>(sixth) % 6];
    *red = colour[0];
    *green = colour[1];
    *blue = colour[2];
  }
}

void posterize(Pixels image, int bits) {
  check("posterize", image, bits >= 0 && bits <= 8);
  const auto mask = static_cast<std::uint8_t>(0xff << (8 - bits));
  for (std::int64_t i = 0; i < image.size(); ++i) image.data[i] &= mask;
}

void solarize(Pixels image, double threshold) {
  check("solarize", image, threshold <= 255);
  apply(image.data, image.size(), table_of([&](float value) {
          return static_cast<std::uint8_t>(value >= static_cast<float>(threshold) ? 255 - value
                                                                                  : value);
        }));
}

void autocontrast(Pixels image) {
  check("autocontrast", image, true);
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    std::uint8_t* const plane = image.data + channel * image.plane();
    const auto [least, most] = std::minmax_element(plane, plane + image.plane());
    if (*least == *most) continue;
    const float lowest = *least;
    const float scale = (static_cast<float>(*most) - lowest) * (1.0F / 255.0F);
    apply(plane, image.plane(),
          table_of([&](float value) { return to_byte((value - lowest) / scale); }));
  }
}

void equalize(Pixels image) {
  check("equalize", image, true);
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    std::uint8_t* const plane = image.data + channel * image.plane();
    std::array<std::int64_t, 256> counts{};
    for (std::int64_t i = 0; i < image.plane(); ++i) ++counts[plane[i]];
    const std::uint8_t most = *std::max_element(plane, plane + image.plane());
    const std::int64_t step = (image.plane() - counts[most]) / 255;
    if (step == 0) continue;
    Table table{};
    std::int64_t below = step / 2;
    for (std::size_t i = 0; i < table.size(); below += counts[i++]) {
      table[i] = static_cast<std::uint8_t>(std::clamp<std::int64_t>(below / step, 0, 255));
    }
    apply(plane, image.plane(), table);
  }
}

void affine(Pixels image, const Affine& from) {
  const std::vector<std::uint8_t> before(image.data, image.data + image.size());
  const double middle_x = static_cast<double>(image.columns) / 2 - 0.5;
  const double middle_y = static_cast<double>(image.rows) / 2 - 0.5;
  for (std::int64_t row = 0; row < image.rows; ++row) {
    for (std::int64_t column = 0; column < image.columns; ++column) {
      const double x = static_cast<double>(column) - middle_x;
      const double y = static_cast<double>(row) - middle_y;
      const auto there_x =
          static_cast<std::int64_t>(std::nearbyint(from.xx * x + from.xy * y + from.x1 + middle_x));
      const auto there_y =
          static_cast<std::int64_t>(std::nearbyint(from.yx * x + from.yy * y + from.y1 + middle_y));
      const bool inside =
          there_x >= 0 && there_x < image.columns && there_y >= 0 && there_y < image.rows;
      for (std::int64_t channel = 0; channel < image.channels; ++channel) {
        const std::int64_t plane = channel * image.plane();
        image.data[plane + row * image.columns + column] =
            inside ? before[static_cast<std::size_t>(plane + there_y * image.columns + there_x)]
                   : 0;
      }
    }
  }
}

}  // namespace dtrain::train

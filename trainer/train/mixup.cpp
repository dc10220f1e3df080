#include "trainer/train/mixup.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

// The logarithm of a number of Gamma(alpha), by Marsaglia and Tsang (2000): small alphas give
// numbers below what a double holds.
double log_gamma_number(double alpha, SampleRandom& random) {
  // Below 1 by a number of Gamma(alpha + 1).
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * random.uniform());
    const double root = 1 + c * normal;
    if (root <= 0) continue;
    const double v = root * root * root;
    const double u = 1 - random.uniform();
    if (std::log(u) >= normal * normal / 2 + d - d * v + d * std::log(v)) continue;
    const double result = std::log(d * v);
    return alpha < 1 ? result + std::log(1 - random.uniform()) / alpha : result;
  }
}

at::Tensor mixed_labels(const at::Tensor& labels, std::int64_t num_classes, double lambda) {
  at::Tensor soft = labels;
  if (labels.dim() == 1) {
    if (labels.numel() > 0 && (labels.min().item<std::int64_t>() < 0 ||
                               labels.max().item<std::int64_t>() >= num_classes)) {
      throw Error("mixup: labels are not all from 0 to " + std::to_string(num_classes - 1));
    }
    soft = at::one_hot(labels, num_classes);
  }
  soft = soft.to(at::kFloat);
  return soft.roll(1, 0).mul_(1 - lambda).add_(soft.mul(lambda));
}

}  // namespace

double beta_number(double alpha, SampleRandom& random) {
  const double one = log_gamma_number(alpha, random);
  const double other = log_gamma_number(alpha, random);
  return 1 / (1 + std::exp(other - one));
}

Mixed mixup(const at::Tensor& images, const at::Tensor& labels, std::int64_t num_classes,
            double lambda) {
  if (!images.is_floating_point()) {
    throw Error("mixup: images of bytes cannot be mixed; leave as_bytes out, or use CutMix");
  }
  return {images.roll(1, 0).mul_(1 - lambda).add_(images.mul(lambda)),
          mixed_labels(labels, num_classes, lambda)};
}

Mixed cutmix(const at::Tensor& images, const at::Tensor& labels, std::int64_t num_classes,
             double lambda, std::int64_t row, std::int64_t column) {
  const std::int64_t rows = images.size(-2);
  const std::int64_t columns = images.size(-1);
  const double half = 0.5 * std::sqrt(1 - lambda);
  const auto high = static_cast<std::int64_t>(half * static_cast<double>(rows));
  const auto wide = static_cast<std::int64_t>(half * static_cast<double>(columns));
  const std::int64_t top = std::max<std::int64_t>(row - high, 0);
  const std::int64_t left = std::max<std::int64_t>(column - wide, 0);
  const std::int64_t height = std::min(row + high, rows) - top;
  const std::int64_t width = std::min(column + wide, columns) - left;
  at::Tensor mixed = images.clone();
  mixed.narrow(-2, top, height)
      .narrow(-1, left, width)
      .copy_(images.narrow(-2, top, height).narrow(-1, left, width).roll(1, 0));
  const double kept = 1 - static_cast<double>(height * width) / static_cast<double>(rows * columns);
  return {mixed, mixed_labels(labels, num_classes, kept)};
}

Mixed mix_batch(const at::Tensor& images, const at::Tensor& labels, const MixupOptions& options,
                std::int64_t epoch, std::span<const std::int64_t> indices) {
  if (options.num_classes < 1 || !(options.mixup_alpha >= 0) || !(options.cutmix_alpha >= 0) ||
      options.mixup_alpha + options.cutmix_alpha == 0) {
    throw Error("mixup: num_classes, and mixup_alpha or cutmix_alpha, must be above 0");
  }
  SampleRandom random(options.seed, epoch, indices.empty() ? 0 : indices.front());
  const bool both = options.mixup_alpha > 0 && options.cutmix_alpha > 0;
  const bool cut = both ? random.coin() : options.cutmix_alpha > 0;
  const double lambda = beta_number(cut ? options.cutmix_alpha : options.mixup_alpha, random);
  if (!cut) return mixup(images, labels, options.num_classes, lambda);
  const std::int64_t column = random.below(images.size(-1));
  return cutmix(images, labels, options.num_classes, lambda, random.below(images.size(-2)), column);
}

}  // namespace dtrain::train

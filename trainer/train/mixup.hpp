#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>

#include "trainer/data/random.hpp"

// Batches mixed with themselves, sample i with sample i - 1, as torchvision's v2.MixUp and
// v2.CutMix.
namespace dtrain::train {

// With both alphas above 0 each batch gets one of the two, with equal chances. Labels become
// float32 [batch, num_classes], which at::cross_entropy_loss takes as it takes int64 [batch].
struct MixupOptions {
  std::int64_t num_classes = 0;
  double mixup_alpha =
      0;  // of Beta(alpha, alpha), which the weight of a sample comes from; 0: none
  double cutmix_alpha = 0;  // the same for the part of an image's area that stays
  std::uint64_t seed = 0;
};

struct Mixed {
  at::Tensor images;
  at::Tensor labels;
};

// lambda images + (1 - lambda) images of the sample before, and labels likewise.
Mixed mixup(const at::Tensor& images, const at::Tensor& labels, std::int64_t num_classes,
            double lambda);
// A box around (row, column) of 1 - lambda of the area, as much of it as lies inside, comes from
// the sample before; labels by the areas. Images of bytes are fine.
Mixed cutmix(const at::Tensor& images, const at::Tensor& labels, std::int64_t num_classes,
             double lambda, std::int64_t row, std::int64_t column);

// One of the two by options.seed, the epoch and the batch's first sample, so that a resume mixes
// the same. Throws Error on options or labels that make no sense.
Mixed mix_batch(const at::Tensor& images, const at::Tensor& labels, const MixupOptions& options,
                std::int64_t epoch, std::span<const std::int64_t> indices);

// A number of Beta(alpha, alpha).
double beta_number(double alpha, SampleRandom& random);

}  // namespace dtrain::train

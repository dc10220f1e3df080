#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trainer/core/metrics.hpp"
#include "trainer/train/context.hpp"

namespace dtrain::train {

// Measures over all ranks. Each rank adds its own samples, as many as it has, none at all too;
// over(context) is collective, gives every rank the same value, and changes nothing, so that
// adding may go on. Counts are whole numbers and exact; a value over no samples is NaN. Tensors
// may be on any device, and need no gradient.

// The mean over samples of values that came as means over batches of different sizes.
class WeightedMean {
 public:
  void add(double mean, std::int64_t samples);
  double over(Context& context) const;
  void reset();

 private:
  double sum_ = 0;
  double samples_ = 0;
};

// The part of the samples whose label is among the k highest scores. Of equal scores the lower
// class comes first.
class Accuracy {
 public:
  explicit Accuracy(std::int64_t k = 1) : k_(k) {}
  // scores [batch, classes], labels int64 [batch].
  void add(const at::Tensor& scores, const at::Tensor& labels);
  double over(Context& context) const;
  void reset();

 private:
  std::int64_t k_;
  std::int64_t right_ = 0;
  std::int64_t samples_ = 0;
};

// How often label i was taken for class j.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::int64_t classes);
  void add(const at::Tensor& scores, const at::Tensor& labels);
  // int64 [classes, classes], label by row, on the CPU.
  at::Tensor over(Context& context) const;
  void reset();

 private:
  at::Tensor counts_;
};

// Of a confusion matrix, by class; NaN where there is nothing to divide by.
std::vector<double> recall_by_class(const at::Tensor& confusion);
std::vector<double> precision_by_class(const at::Tensor& confusion);

}  // namespace dtrain::train

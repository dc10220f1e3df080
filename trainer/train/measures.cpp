#include "trainer/train/measures.hpp"

#include <ATen/ATen.h>

#include <limits>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

double quotient(double a, double b) {
  return b > 0 ? a / b : std::numeric_limits<double>::quiet_NaN();
}

void check(const at::Tensor& scores, const at::Tensor& labels) {
  if (scores.dim() != 2 || labels.dim() != 1 || scores.size(0) != labels.size(0) ||
      labels.scalar_type() != at::kLong) {
    throw Error("measure: scores are to be [batch, classes] and labels int64 [batch]");
  }
}

// Every label must be a class: a wrong one would silently count as a mistake.
void check_labels(const at::Tensor& labels, std::int64_t classes) {
  if (labels.numel() == 0) return;
  const auto least = labels.min().item<std::int64_t>();
  const auto most = labels.max().item<std::int64_t>();
  if (least < 0 || most >= classes) {
    throw Error("measure: label " + std::to_string(least < 0 ? least : most) + " is not one of " +
                std::to_string(classes) + " classes");
  }
}

std::vector<double> by_class(const at::Tensor& confusion, std::int64_t sum_over) {
  const at::Tensor sums = confusion.sum(sum_over);
  std::vector<double> result;
  for (std::int64_t i = 0; i < confusion.size(0); ++i) {
    result.push_back(quotient(confusion[i][i].item<double>(), sums[i].item<double>()));
  }
  return result;
}

}  // namespace

void WeightedMean::add(double mean, std::int64_t samples) {
  if (samples < 0) throw Error("measure: a batch cannot have " + std::to_string(samples));
  if (samples == 0) return;
  sum_ += mean * static_cast<double>(samples);
  samples_ += static_cast<double>(samples);
}

double WeightedMean::over(Context& context) const {
  const auto sums = context.all_reduce_sum(std::vector{sum_, samples_});
  return quotient(sums[0], sums[1]);
}

void WeightedMean::reset() {
  sum_ = samples_ = 0;
}

void Accuracy::add(const at::Tensor& scores, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  check(scores, labels);
  check_labels(labels, scores.size(1));
  samples_ += labels.size(0);
  if (labels.size(0) == 0) return;
  // Its rank is the number of classes before it: with a higher score, or an equal one and lower.
  const at::Tensor column = labels.unsqueeze(1);
  const at::Tensor its = scores.gather(1, column);
  const at::Tensor classes = at::arange(scores.size(1), labels.options()).unsqueeze(0);
  const at::Tensor before =
      scores.gt(its).logical_or(scores.eq(its).logical_and(classes.lt(column)));
  // A score that is not a number is never right.
  const at::Tensor right = before.sum(1).lt(k_).logical_and(its.squeeze(1).isnan().logical_not());
  right_ += right.sum().item<std::int64_t>();
}

double Accuracy::over(Context& context) const {
  const auto sums = context.all_reduce_sum(
      std::vector{static_cast<double>(right_), static_cast<double>(samples_)});
  return quotient(sums[0], sums[1]);
}

void Accuracy::reset() {
  right_ = samples_ = 0;
}

ConfusionMatrix::ConfusionMatrix(std::int64_t classes)
    : counts_(at::zeros({classes, classes}, at::kLong)) {}

void ConfusionMatrix::add(const at::Tensor& scores, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  check(scores, labels);
  const std::int64_t classes = counts_.size(0);
  if (scores.size(1) != classes) {
    throw Error("measure: scores of " + std::to_string(scores.size(1)) + " classes, not " +
                std::to_string(classes));
  }
  check_labels(labels, classes);
  const at::Tensor cell = (labels * classes + scores.argmax(1)).to(at::kCPU);
  counts_ += cell.bincount({}, classes * classes).view({classes, classes});
}

at::Tensor ConfusionMatrix::over(Context& context) const {
  at::Tensor sums = counts_.clone();
  context.all_reduce_sum(sums);
  return sums;
}

void ConfusionMatrix::reset() {
  counts_.zero_();
}

std::vector<double> recall_by_class(const at::Tensor& confusion) {
  return by_class(confusion, 1);
}

std::vector<double> precision_by_class(const at::Tensor& confusion) {
  return by_class(confusion, 0);
}

}  // namespace dtrain::train

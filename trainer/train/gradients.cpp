#include "trainer/train/gradients.hpp"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "trainer/comm/elements.hpp"
#include "trainer/comm/kernels.hpp"

namespace dtrain::train {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
  }
  return gradients;
}

}  // namespace

std::vector<double> gradient_squares(const at::Tensor& gradient) {
  const std::int64_t count = gradient.numel();
  const auto element = comm::element_of(gradient.scalar_type());
  if (!gradient.is_cpu() || !element || !comm::can_scale(*element)) {
    // One number; the blocks are for sums that must have the same bits however they are shared out.
    std::vector<double> squares(static_cast<std::size_t>(norm_blocks(count)));
    if (!squares.empty()) {
      squares[0] = std::pow(
          at::linalg_vector_norm(gradient, 2, c10::nullopt, false, at::kDouble).item<double>(), 2);
    }
    return squares;
  }
  const at::Tensor dense =
      gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous();
  const auto* const bytes = static_cast<const std::byte*>(dense.const_data_ptr());
  const auto unit = static_cast<std::int64_t>(dense.element_size());
  std::vector<double> squares;
  for (std::int64_t begin = 0; begin < count; begin += kNormBlock) {
    squares.push_back(
        comm::sum_of_squares(*element, bytes + begin * unit,
                             static_cast<std::size_t>(std::min(kNormBlock, count - begin))));
  }
  return squares;
}

double gradient_norm(const std::vector<NamedParameter>& parameters) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return 0;
  if (!gradients[0].is_cpu()) {  // the device is waited for once
    return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients))).item<double>();
  }
  double sum = 0;
  for (const at::Tensor& gradient : gradients) {
    for (const double squares : gradient_squares(gradient)) sum += squares;
  }
  return std::sqrt(sum);
}

namespace {

double clip(const std::vector<NamedParameter>& parameters, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  // min() would take 1 for a factor that is no number, and hide it.
  if (!(factor >= 1)) scale_gradients(parameters, factor);
  return norm;
}

}  // namespace

double clip_gradient_norm(const std::vector<NamedParameter>& parameters, double max_norm) {
  return clip(parameters, gradient_norm(parameters), max_norm);
}

double clip_gradient_norm(Optimizer& optimizer, double max_norm) {
  const double norm = optimizer.gradient_norm();
  return clip(optimizer.stepped(), norm, max_norm);
}

void clip_gradient_values(Optimizer& optimizer, double limit) {
  clip_gradient_values(optimizer.stepped(), limit);
}

void scale_gradients(Optimizer& optimizer, double factor) {
  scale_gradients(optimizer.stepped(), factor);
}

void clip_gradient_values(const std::vector<NamedParameter>& parameters, double limit) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -limit);
  at::_foreach_clamp_max_(gradients, limit);
}

void scale_gradients(const std::vector<NamedParameter>& parameters, double factor) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

}  // namespace dtrain::train

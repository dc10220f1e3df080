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

double gradient_norm(const std::vector<NamedParameter>& parameters) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return 0;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients))).item<double>();
}

double clip_gradient_norm(const std::vector<NamedParameter>& parameters, double max_norm) {
  const double norm = gradient_norm(parameters);
  const double factor = max_norm / (norm + 1e-6);
  // min() would take 1 for a factor that is no number, and hide it.
  if (!(factor >= 1)) scale_gradients(parameters, factor);
  return norm;
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

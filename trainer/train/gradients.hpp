#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// Of the parameters that have a gradient. Those over parameters are for gradients that are whole on
// each rank (DDP's are, equal to the others'): nothing is sent. Those over an optimizer are right
// also where it shards the gradients (ZeroOptimizer), and then collective.

// The 2-norm of all gradients as one vector. On the CPU it is gathered in double, block by block
// (gradient_squares), so that ranks that have parts of the gradients come to the same bits.
double gradient_norm(const std::vector<NamedParameter>& parameters);

// Scales all gradients so that their norm is at most max_norm, and returns the norm before. As
// torch.nn.utils.clip_grad_norm_: the factor is max_norm / (norm + 1e-6), at most 1. A norm that
// is not finite leaves gradients that are not finite.
double clip_gradient_norm(const std::vector<NamedParameter>& parameters, double max_norm);
double clip_gradient_norm(Optimizer& optimizer, double max_norm);

// Cuts each element to [-limit, limit].
void clip_gradient_values(const std::vector<NamedParameter>& parameters, double limit);
void clip_gradient_values(Optimizer& optimizer, double limit);

// Divides them all: the mean over micro batches, where their sum was gathered.
void scale_gradients(const std::vector<NamedParameter>& parameters, double factor);
void scale_gradients(Optimizer& optimizer, double factor);

// Elements of one block, of which the sum of squares is one number.
inline constexpr std::int64_t kNormBlock = 1024;
constexpr std::int64_t norm_blocks(std::int64_t elements) {
  return (elements + kNormBlock - 1) / kNormBlock;
}
// The sum of squares of each block, in the order of memory.
std::vector<double> gradient_squares(const at::Tensor& gradient);

}  // namespace dtrain::train

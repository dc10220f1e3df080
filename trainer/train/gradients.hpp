#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// Of the parameters that have a gradient. Under DDP and ZeRO-1 each rank has all gradients, equal
// to the others', so these are right on every rank and nothing is sent.

// The 2-norm of all gradients as one vector.
double gradient_norm(const std::vector<NamedParameter>& parameters);

// Scales all gradients so that their norm is at most max_norm, and returns the norm before. As
// torch.nn.utils.clip_grad_norm_: the factor is max_norm / (norm + 1e-6), at most 1. A norm that
// is not finite leaves gradients that are not finite.
double clip_gradient_norm(const std::vector<NamedParameter>& parameters, double max_norm);

// Cuts each element to [-limit, limit].
void clip_gradient_values(const std::vector<NamedParameter>& parameters, double limit);

// Divides them all: the mean over micro batches, where their sum was gathered.
void scale_gradients(const std::vector<NamedParameter>& parameters, double factor);

}  // namespace dtrain::train

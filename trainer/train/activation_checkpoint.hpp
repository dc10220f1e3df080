#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace dtrain::train {

struct ActivationCheckpointOptions {
  // The generators as they were, for dropout and the like. Without it nothing is copied.
  bool preserve_rng_state = true;
};

// Activation checkpointing: memory for time. What the function's operations would keep for backward
// is dropped, and made anew by a second call when backward asks for it. Gradients are bit for bit
// those without it.
//
//     x = checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//
// As torch.utils.checkpoint with use_reentrant=False: saved tensors have hooks, so that backward is
// one graph, DDP sees each parameter once, inputs need no gradient, and checkpoints may nest. The
// second call has the same inputs, autocast and (preserve_rng_state) random generators, of the CPU
// and of the inputs' device. backward throws Error when it saves other tensors than the first.
//
// The function is kept until backward: what it refers to must live as long. What it does beside its
// result it does twice: running statistics of batch norm move twice, as with Python's.
// Without gradients (NoGradGuard) it is a plain call. A thread's checkpoints are its own.
//
// The first call puts an engine of ours in the place of autograd's, whose only difference are these
// hooks: C++ has no other way to set them. Not beside another engine (Python's) in one process.
using CheckpointedFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
std::vector<at::Tensor> checkpoint(const CheckpointedFunction& function,
                                   const std::vector<at::Tensor>& inputs,
                                   const ActivationCheckpointOptions& options = {});
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                      const at::Tensor& input, const ActivationCheckpointOptions& options = {});

// A chain of modules in `segments` parts of equal length, of which all but the last are
// checkpointed: torch.utils.checkpoint.checkpoint_sequential.
at::Tensor checkpoint_sequential(torch::nn::Sequential modules, std::int64_t segments,
                                 const at::Tensor& input,
                                 const ActivationCheckpointOptions& options = {});

}  // namespace dtrain::train

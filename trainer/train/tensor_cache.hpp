#pragma once

#include <cstddef>

namespace dtrain::train {

// Each step of a training frees the large tensors that the next one asks for again. With LibTorch's
// allocator for the CPU their memory goes back to the kernel in between and comes again page by
// page: a sixth of a step of ResNet-18 with two ranks at batch 32. This one keeps what is freed by
// sizes, as LibTorch's does on a GPU. What is kept and what is in use together stay below 1.5 times
// the most that ever was in use; above it what was not wanted for longest goes back.
//
// Makes it LibTorch's allocator for the CPU, for tensors made from now on, of any thread. Later
// calls do nothing. Context::join() calls it for ranks on the CPU, unless the environment has
// DTRAIN_TENSOR_CACHE=0 (tools that look at each allocation want that).
void install_tensor_cache();

// Gives back what is kept, and forgets the most that ever was in use: after something large that
// does not come again. Any thread.
void trim_tensor_cache();

struct TensorCacheUse {
  std::size_t in_use = 0;  // bytes of the larger tensors
  std::size_t kept = 0;    // bytes that wait for the next ones
  std::size_t mapped = 0;  // blocks that were asked of the kernel, from the beginning
};
// All zero without a cache. Any thread.
TensorCacheUse tensor_cache_use();

}  // namespace dtrain::train

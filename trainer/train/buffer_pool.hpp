#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace dtrain::train {

// Hands out tensors, and hands their memory out again when nobody holds them any more: neither a
// batch, nor a view, nor autograd. Memory that has been used before needs no page faults, which
// are most of what a large fresh tensor costs. With `pinned` all of it is pinned, from ATen's own
// cache, which knows of copies to the device that are still under way.
//
// Copies of a pool are the same pool. Any thread may use it.
class BufferPool {
 public:
  explicit BufferPool(bool pinned = false);
  // Its content is whatever was there.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType type);

  // How often memory was used again, for tests and the curious.
  std::int64_t reused() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dtrain::train

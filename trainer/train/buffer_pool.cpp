#include "trainer/train/buffer_pool.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <mutex>
#include <vector>

namespace dtrain::train {
namespace {

constexpr std::size_t kMostBuffers = 256;  // beyond that they are the caller's alone

}  // namespace

struct BufferPool::State {
  bool pinned = false;
  std::mutex mutex;
  std::vector<at::Tensor> buffers;
  std::int64_t reused = 0;
};

BufferPool::BufferPool(bool pinned) : state_(std::make_shared<State>()) {
  state_->pinned = pinned;
}

at::Tensor BufferPool::take(at::IntArrayRef sizes, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type).pinned_memory(state_->pinned);
  if (state_->pinned) return at::empty(sizes, options);
  const std::int64_t count = c10::multiply_integers(sizes);
  {
    const std::lock_guard lock(state_->mutex);
    for (const at::Tensor& buffer : state_->buffers) {
      // One owner is the pool: tensors and views of it share the storage.
      if (buffer.scalar_type() == type && buffer.numel() >= count && count > 0 &&
          buffer.storage().use_count() == 1) {
        ++state_->reused;
        // An alias of its own: what a caller does to it (its gradient, its shape) stays with it.
        return buffer.alias().narrow(0, 0, count).view(sizes);
      }
    }
  }
  at::Tensor fresh = at::empty({count}, options);
  const std::lock_guard lock(state_->mutex);
  if (state_->buffers.size() < kMostBuffers) state_->buffers.push_back(fresh);
  return fresh.alias().view(sizes);
}

std::int64_t BufferPool::reused() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reused;
}

}  // namespace dtrain::train

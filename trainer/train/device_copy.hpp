#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace dtrain::train {

// Brings batches to a GPU beside its work: from pinned memory, on a stream of its own. For the
// threads that make batches: each copy is finished when copy() returns, so that the training finds
// its next batches there. Any thread. Not run on a GPU yet.
class DeviceCopy {
 public:
  explicit DeviceCopy(c10::Device device);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  std::vector<at::Tensor> copy(std::vector<at::Tensor> tensors);
  // On the training's thread, before it uses what copy() gave: its memory is then not given to the
  // next copy while work of the current stream still reads it.
  static void will_use(const std::vector<at::Tensor>& tensors);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtrain::train

#include "trainer/train/device_copy.hpp"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtrain::train {

struct DeviceCopy::State {
  c10::Device device;
  c10::Stream stream;
};

DeviceCopy::DeviceCopy(c10::Device device)
    : state_(std::make_unique<State>(State{
          device, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)})) {}

DeviceCopy::~DeviceCopy() = default;

std::vector<at::Tensor> DeviceCopy::copy(std::vector<at::Tensor> tensors) {
  const c10::StreamGuard on_own_stream(state_->stream);
  std::vector<at::Tensor> pinned;  // until the copies are done
  for (at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu()) continue;
    pinned.push_back(tensor.is_pinned() ? tensor : tensor.pin_memory());
    tensor = pinned.back().to(state_->device, /*non_blocking=*/true);
  }
  c10::Event done(state_->device.type());
  done.record(state_->stream);
  done.synchronize();
  return tensors;
}

void DeviceCopy::will_use(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cuda()) continue;
    tensor.record_stream(
        c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }
}

}  // namespace dtrain::train

#include "trainer/train/late_scalars.hpp"

#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <unordered_map>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostWaiting = 4096;

}  // namespace

void LateScalars::add(const at::Tensor& value, Use use) {
  if (!value.defined() || value.numel() != 1) {
    throw Error("a tensor that is to be one number has " +
                std::string(value.defined() ? std::to_string(value.numel()) : "no") + " elements");
  }
  const c10::NoGradGuard no_grad;
  waiting_.push_back({.tensor = value.detach().reshape({}).to(at::kDouble, /*non_blocking=*/false,
                                                              /*copy=*/true),
                      .use = std::move(use)});
  if (waiting_.size() >= kMostWaiting) read();
}

void LateScalars::add(double value, Use use) {
  if (waiting_.empty()) return use(value);
  waiting_.push_back({.tensor = {}, .value = value, .use = std::move(use)});
}

void LateScalars::read() {
  const std::vector<Waiting> all = std::exchange(waiting_, {});
  // By device: as good as always there is one.
  std::unordered_map<c10::Device, std::vector<at::Tensor>> tensors;
  for (const Waiting& each : all) {
    if (each.tensor.defined()) tensors[each.tensor.device()].push_back(each.tensor);
  }
  std::unordered_map<c10::Device, at::Tensor> values;
  std::unordered_map<c10::Device, const double*> next;
  for (const auto& [device, its] : tensors) {
    values[device] = at::stack(its).to(at::kCPU);
    next[device] = values[device].const_data_ptr<double>();
  }
  for (const Waiting& each : all) {
    each.use(each.tensor.defined() ? *next.at(each.tensor.device())++ : each.value);
  }
}

}  // namespace dtrain::train

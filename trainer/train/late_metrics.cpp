#include "trainer/train/late_metrics.hpp"

#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <unordered_map>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

// All on one device, each of one element: one wait for it.
std::vector<double> read_tensors(const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  if (tensors.size() == 1) return {tensors[0].item<double>()};
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({}).to(at::kDouble));
  const at::Tensor all = at::stack(flat).cpu();
  const auto* values = all.const_data_ptr<double>();
  return {values, values + all.numel()};
}

}  // namespace

LateMetric::LateMetric(const at::Tensor& value) : is_tensor_(true) {
  if (value.defined()) tensor_ = value.detach();
}

Metrics read_metrics(const std::map<std::string, LateMetric>& metrics) {
  Metrics values;
  struct OfDevice {
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
  };
  std::unordered_map<c10::Device, OfDevice> devices;
  for (const auto& [name, metric] : metrics) {
    if (metric.read_) {
      values[name] = metric.read_();
    } else if (!metric.is_tensor_) {
      values[name] = metric.number_;
    } else if (metric.tensor_.defined()) {
      if (metric.tensor_.numel() != 1) {
        throw Error("metric '" + name + "' is a tensor of " +
                    std::to_string(metric.tensor_.numel()) + " elements, not of one");
      }
      if (metric.tensor_.is_cpu()) {
        values[name] = metric.tensor_.item<double>();
        continue;
      }
      OfDevice& its = devices[metric.tensor_.device()];
      its.names.push_back(name);
      its.tensors.push_back(metric.tensor_);
    }
  }
  for (const auto& [device, its] : devices) {
    const std::vector<double> read = read_tensors(its.tensors);
    for (std::size_t i = 0; i < read.size(); ++i) values[its.names[i]] = read[i];
  }
  return values;
}

void LossCheck::add(std::int64_t step, const at::Tensor& loss) {
  steps_.push_back(step);
  losses_.push_back(loss.detach());
  if (unread() >= every_) read();
}

void LossCheck::read() {
  if (losses_.empty()) return;
  const std::vector<double> values = read_tensors(std::exchange(losses_, {}));
  const std::vector<std::int64_t> steps = std::exchange(steps_, {});
  for (std::size_t i = 0; i < values.size(); ++i) session_.check_loss(steps[i], values[i]);
}

}  // namespace dtrain::train

#include "trainer/train/late_metrics.hpp"

#include "trainer/core/error.hpp"

namespace dtrain::train {

LateMetric::LateMetric(const at::Tensor& value) : is_tensor_(true) {
  if (value.defined()) tensor_ = value.detach().clone();
}

Metrics read_metrics(const std::map<std::string, LateMetric>& metrics) {
  Metrics values;
  LateScalars tensors;
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
      tensors.add(metric.tensor_, [&values, &name = name](double value) { values[name] = value; });
    }
  }
  tensors.read();
  return values;
}

void LossCheck::add(std::int64_t step, const at::Tensor& loss) {
  losses_.add(loss, [this, step](double value) { session_.check_loss(step, value); });
  if (++unread_ >= every_) read();
}

void LossCheck::read() {
  unread_ = 0;
  losses_.read();
}

}  // namespace dtrain::train

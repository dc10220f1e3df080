#include "trainer/models/mlp.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace dtrain::train {

MlpImpl::MlpImpl(const MlpOptions& options) {
  std::int64_t width = options.inputs;
  for (const std::int64_t next : options.hidden) {
    layers_->push_back(torch::nn::Linear(width, next));
    layers_->push_back(torch::nn::ReLU());
    width = next;
  }
  layers_->push_back(torch::nn::Linear(width, options.classes));
  register_module("layers", layers_);
}

torch::Tensor MlpImpl::forward(const torch::Tensor& input) {
  return layers_->forward(input.flatten(1));
}

}  // namespace dtrain::train

#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace dtrain::train {

struct MlpOptions {
  std::int64_t inputs = 784;
  std::vector<std::int64_t> hidden{128};
  std::int64_t classes = 10;
};

// Linear layers with ReLU between them, over the flattened input. Its tensors have the names of
// Python's nn.Sequential in a member `layers`: layers.0.weight, layers.2.weight, …
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpOptions& options = {});
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Mlp);

}  // namespace dtrain::train

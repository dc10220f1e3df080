#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>

#include "trainer/train/batch_norm.hpp"

namespace dtrain::train {

// Two 3x3 convolutions and the way around them.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(std::int64_t inputs, std::int64_t outputs, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  BatchNorm bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  BatchNorm bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // only where shape changes
};
TORCH_MODULE(BasicBlock);

// 1x1, 3x3 and 1x1 convolutions, the last with four times as many channels, and the way around
// them. As torchvision's (ResNet V1.5): the stride is the 3x3 one's.
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t inputs, std::int64_t width, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  BatchNorm bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  BatchNorm bn2_{nullptr};
  torch::nn::Conv2d conv3_{nullptr};
  BatchNorm bn3_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // only where shape changes
};
TORCH_MODULE(Bottleneck);

enum class ResNetBlock : std::uint8_t { basic, bottleneck };

// ResNet with torchvision's names, shapes and initialization, so that either side loads the
// other's weights strictly.
class ResNetImpl : public torch::nn::Module {
 public:
  explicit ResNetImpl(std::array<std::int64_t, 4> blocks, std::int64_t classes = 1000,
                      ResNetBlock block = ResNetBlock::basic);
  torch::Tensor forward(const torch::Tensor& images);  // [batch, channels, rows, columns]

  // What users of torchvision do for other than three channels:
  //     model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
  // and its initialization is Conv2d's own, as there.
  void replace_conv1(torch::nn::Conv2d conv1);
  // model.maxpool = nn.Identity(): for pictures so small that halving them costs too much.
  void without_max_pool() { max_pool_ = false; }

 private:
  torch::nn::Conv2d conv1_{nullptr};
  BatchNorm bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> layers_;
  torch::nn::Linear fc_{nullptr};
  bool max_pool_ = true;
};
TORCH_MODULE(ResNet);

// torchvision's networks of so many layers, with fresh weights.
ResNet resnet18(std::int64_t classes = 1000);
ResNet resnet34(std::int64_t classes = 1000);
ResNet resnet50(std::int64_t classes = 1000);
ResNet resnet101(std::int64_t classes = 1000);
ResNet resnet152(std::int64_t classes = 1000);

// Conv2d(channels, 64, kernel 7, stride 2, padding 3, no bias): ResNet's first, for any images.
torch::nn::Conv2d resnet_conv1(std::int64_t channels);

}  // namespace dtrain::train

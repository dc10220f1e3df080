#include "trainer/models/resnet.hpp"

#include <torch/nn/functional/pooling.h>
#include <torch/nn/init.h>

#include <string>

namespace dtrain::train {
namespace {

torch::nn::Conv2d conv(std::int64_t inputs, std::int64_t outputs, std::int64_t kernel,
                       std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, kernel)
                               .stride(stride)
                               .padding(kernel / 2)
                               .bias(false));
}

// The way around a block, where its output has another shape than its input.
torch::nn::Sequential downsample(std::int64_t inputs, std::int64_t outputs, std::int64_t stride) {
  if (stride == 1 && inputs == outputs) return nullptr;
  return torch::nn::Sequential(conv(inputs, outputs, 1, stride), BatchNorm(outputs));
}

}  // namespace

torch::nn::Conv2d resnet_conv1(std::int64_t channels) {
  return conv(channels, 64, 7, 2);
}

BasicBlockImpl::BasicBlockImpl(std::int64_t inputs, std::int64_t outputs, std::int64_t stride) {
  conv1_ = register_module("conv1", conv(inputs, outputs, 3, stride));
  bn1_ = register_module("bn1", BatchNorm(outputs));
  conv2_ = register_module("conv2", conv(outputs, outputs, 3, 1));
  bn2_ = register_module("bn2", BatchNorm(outputs));
  downsample_ = downsample(inputs, outputs, stride);
  if (downsample_) register_module("downsample", downsample_);
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& input) {
  torch::Tensor out = bn1_->forward(conv1_->forward(input));
  torch::relu_(out);
  out = bn2_->forward(conv2_->forward(out));
  out += downsample_ ? downsample_->forward(input) : input;
  return torch::relu_(out);
}

BottleneckImpl::BottleneckImpl(std::int64_t inputs, std::int64_t width, std::int64_t stride) {
  conv1_ = register_module("conv1", conv(inputs, width, 1, 1));
  bn1_ = register_module("bn1", BatchNorm(width));
  conv2_ = register_module("conv2", conv(width, width, 3, stride));
  bn2_ = register_module("bn2", BatchNorm(width));
  conv3_ = register_module("conv3", conv(width, 4 * width, 1, 1));
  bn3_ = register_module("bn3", BatchNorm(4 * width));
  downsample_ = downsample(inputs, 4 * width, stride);
  if (downsample_) register_module("downsample", downsample_);
}

torch::Tensor BottleneckImpl::forward(const torch::Tensor& input) {
  torch::Tensor out = bn1_->forward(conv1_->forward(input));
  torch::relu_(out);
  out = bn2_->forward(conv2_->forward(out));
  torch::relu_(out);
  out = bn3_->forward(conv3_->forward(out));
  out += downsample_ ? downsample_->forward(input) : input;
  return torch::relu_(out);
}

ResNetImpl::ResNetImpl(std::array<std::int64_t, 4> blocks, std::int64_t classes,
                       ResNetBlock block) {
  conv1_ = register_module("conv1", resnet_conv1(3));
  bn1_ = register_module("bn1", BatchNorm(64));
  std::int64_t inputs = 64;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t width = std::int64_t{64} << i;
    for (std::int64_t j = 0; j < blocks[i]; ++j) {
      const std::int64_t stride = j == 0 && i > 0 ? 2 : 1;
      if (block == ResNetBlock::basic) {
        layers_[i]->push_back(BasicBlock(inputs, width, stride));
        inputs = width;
      } else {
        layers_[i]->push_back(Bottleneck(inputs, width, stride));
        inputs = 4 * width;
      }
    }
    register_module("layer" + std::to_string(i + 1), layers_[i]);
  }
  fc_ = register_module("fc", torch::nn::Linear(inputs, classes));
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* convolution = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = bn1_->forward(conv1_->forward(images));
  torch::relu_(x);
  if (max_pool_) x = torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (torch::nn::Sequential& layer : layers_) x = layer->forward(x);
  x = torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  return fc_->forward(x);
}

void ResNetImpl::replace_conv1(torch::nn::Conv2d conv1) {
  conv1_ = replace_module("conv1", std::move(conv1));
}

ResNet resnet18(std::int64_t classes) {
  return ResNet(std::array<std::int64_t, 4>{2, 2, 2, 2}, classes);
}

ResNet resnet34(std::int64_t classes) {
  return ResNet(std::array<std::int64_t, 4>{3, 4, 6, 3}, classes);
}

ResNet resnet50(std::int64_t classes) {
  return ResNet(std::array<std::int64_t, 4>{3, 4, 6, 3}, classes, ResNetBlock::bottleneck);
}

ResNet resnet101(std::int64_t classes) {
  return ResNet(std::array<std::int64_t, 4>{3, 4, 23, 3}, classes, ResNetBlock::bottleneck);
}

ResNet resnet152(std::int64_t classes) {
  return ResNet(std::array<std::int64_t, 4>{3, 8, 36, 3}, classes, ResNetBlock::bottleneck);
}

}  // namespace dtrain::train

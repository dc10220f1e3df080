#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace dtrain::train {

struct VisionTransformerOptions {
  std::int64_t image_size = 224;  // both sides; a multiple of the patch's
  std::int64_t patch_size = 16;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t hidden = 768;  // a multiple of the heads
  std::int64_t mlp = 3072;
  double dropout = 0;
  double attention_dropout = 0;
  std::int64_t classes = 1000;
  // Each block's activations are computed again for backward (train/activation_checkpoint.hpp).
  bool checkpoint_activations = false;
};

// Self-attention with the parameters of torch.nn.MultiheadAttention: in_proj_weight, in_proj_bias,
// out_proj.
class SelfAttentionImpl : public torch::nn::Module {
 public:
  SelfAttentionImpl(std::int64_t hidden, std::int64_t heads, double dropout);
  torch::Tensor forward(const torch::Tensor& input);  // [batch, tokens, hidden]

  // How it is computed; the results differ in rounding only. `automatic` takes what is faster: on
  // a CPU a product of matrices for few tokens, else ATen's scaled_dot_product_attention.
  enum class Way : std::uint8_t { automatic, matmul, fused };
  void use(Way way) { way_ = way; }

 private:
  std::int64_t heads_;
  double dropout_;
  Way way_ = Way::automatic;
  torch::Tensor in_proj_weight_;
  torch::Tensor in_proj_bias_;
  torch::nn::Linear out_proj_{nullptr};
};
TORCH_MODULE(SelfAttention);

// Norm, attention, norm, perceptron, with a way around each half.
class EncoderBlockImpl : public torch::nn::Module {
 public:
  explicit EncoderBlockImpl(const VisionTransformerOptions& options);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::LayerNorm ln_1_{nullptr};
  SelfAttention self_attention_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  torch::nn::Sequential mlp_;
};
TORCH_MODULE(EncoderBlock);

// torchvision's VisionTransformer: its names, shapes and initialization, so that either side loads
// the other's weights strictly.
class VisionTransformerImpl : public torch::nn::Module {
 public:
  // Throws Error-like c10::Error on sizes that do not divide.
  explicit VisionTransformerImpl(const VisionTransformerOptions& options = {});
  torch::Tensor forward(const torch::Tensor& images);  // [batch, 3, size, size]

  const VisionTransformerOptions& options() const { return options_; }
  void use_attention(SelfAttentionImpl::Way way);

 private:
  VisionTransformerOptions options_;
  torch::Tensor class_token_;
  torch::nn::Conv2d conv_proj_{nullptr};
  torch::Tensor pos_embedding_;
  torch::nn::Dropout dropout_{nullptr};
  std::vector<EncoderBlock> blocks_;
  torch::nn::LayerNorm ln_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(VisionTransformer);

// What the CIFAR-10 tutorials train: 12 layers of 8 heads, 384 wide, patches of 4 of 32 pixels.
VisionTransformerOptions vit_for_cifar10();

}  // namespace dtrain::train

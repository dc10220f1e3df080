#include "trainer/models/vision_transformer.hpp"

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>

#include <cmath>
#include <string>

#include "trainer/train/activation_checkpoint.hpp"

namespace dtrain::train {
namespace {

constexpr double kNormEps = 1e-6;
// Up to here the plain products were faster on a CPU (65 tokens: 11.9 against 13.7 ms).
constexpr std::int64_t kFewTokens = 128;

torch::nn::LayerNorm norm(std::int64_t hidden) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}).eps(kNormEps));
}

// A module that only holds others, for the sake of their names.
class Group : public torch::nn::Module {};

// Normal with this deviation, cut off at two of torch.nn.init.trunc_normal_'s units.
void truncated_normal(const torch::Tensor& tensor, double deviation) {
  const at::NoGradGuard no_grad;
  const double limit = std::erf(2 / deviation / std::sqrt(2.0));
  tensor.uniform_(-limit, limit).erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-2, 2);
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(std::int64_t hidden, std::int64_t heads, double dropout)
    : heads_(heads), dropout_(dropout) {
  TORCH_CHECK(heads >= 1 && hidden % heads == 0, "attention: ", hidden,
              " values cannot be shared by ", heads, " heads");
  in_proj_weight_ = register_parameter("in_proj_weight", torch::empty({3 * hidden, hidden}));
  in_proj_bias_ = register_parameter("in_proj_bias", torch::zeros({3 * hidden}));
  out_proj_ = register_module("out_proj", torch::nn::Linear(hidden, hidden));
  torch::nn::init::xavier_uniform_(in_proj_weight_);
  torch::nn::init::zeros_(out_proj_->bias);
}

torch::Tensor SelfAttentionImpl::forward(const torch::Tensor& input) {
  const std::int64_t batch = input.size(0);
  const std::int64_t tokens = input.size(1);
  const std::int64_t hidden = input.size(2);
  const std::int64_t width = hidden / heads_;
  // [3, batch, heads, tokens, width]
  const torch::Tensor qkv = torch::linear(input, in_proj_weight_, in_proj_bias_)
                                .view({batch, tokens, 3, heads_, width})
                                .permute({2, 0, 3, 1, 4});
  const double drop = is_training() ? dropout_ : 0;
  const bool plain =
      way_ == Way::matmul || (way_ == Way::automatic && input.is_cpu() && tokens <= kFewTokens);
  torch::Tensor out;
  if (plain) {
    const torch::Tensor scaled = qkv[0] * (1 / std::sqrt(static_cast<double>(width)));
    torch::Tensor weights = scaled.matmul(qkv[1].transpose(-2, -1)).softmax(-1);
    if (drop > 0) weights = torch::dropout(weights, drop, /*train=*/true);
    out = weights.matmul(qkv[2]);
  } else {
    out = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, drop);
  }
  return out_proj_->forward(out.transpose(1, 2).reshape({batch, tokens, hidden}));
}

EncoderBlockImpl::EncoderBlockImpl(const VisionTransformerOptions& o) {
  ln_1_ = register_module("ln_1", norm(o.hidden));
  self_attention_ =
      register_module("self_attention", SelfAttention(o.hidden, o.heads, o.attention_dropout));
  dropout_ = register_module("dropout", torch::nn::Dropout(o.dropout));
  ln_2_ = register_module("ln_2", norm(o.hidden));
  // torchvision's MLPBlock: Linear, GELU, Dropout, Linear, Dropout.
  const torch::nn::Linear first(o.hidden, o.mlp);
  const torch::nn::Linear second(o.mlp, o.hidden);
  for (const torch::nn::Linear& linear : {first, second}) {
    torch::nn::init::xavier_uniform_(linear->weight);
    torch::nn::init::normal_(linear->bias, 0, 1e-6);
  }
  mlp_ = register_module(
      "mlp", torch::nn::Sequential(first, torch::nn::GELU(), torch::nn::Dropout(o.dropout), second,
                                   torch::nn::Dropout(o.dropout)));
}

torch::Tensor EncoderBlockImpl::forward(const torch::Tensor& input) {
  const torch::Tensor x =
      dropout_->forward(self_attention_->forward(ln_1_->forward(input))) + input;
  return x + mlp_->forward(ln_2_->forward(x));
}

VisionTransformerImpl::VisionTransformerImpl(const VisionTransformerOptions& options)
    : options_(options) {
  const VisionTransformerOptions& o = options_;
  TORCH_CHECK(o.patch_size >= 1 && o.image_size % o.patch_size == 0,
              "VisionTransformer: ", o.image_size, " pixels cannot be cut into patches of ",
              o.patch_size);
  class_token_ = register_parameter("class_token", torch::zeros({1, 1, o.hidden}));
  conv_proj_ = register_module(
      "conv_proj",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, o.hidden, o.patch_size).stride(o.patch_size)));
  const std::int64_t side = o.image_size / o.patch_size;
  const auto encoder = register_module("encoder", std::make_shared<Group>());
  pos_embedding_ =
      encoder->register_parameter("pos_embedding", torch::empty({1, side * side + 1, o.hidden}));
  dropout_ = encoder->register_module("dropout", torch::nn::Dropout(o.dropout));
  const auto layers = encoder->register_module("layers", std::make_shared<Group>());
  for (std::int64_t i = 0; i < o.layers; ++i) {
    blocks_.push_back(
        layers->register_module("encoder_layer_" + std::to_string(i), EncoderBlock(o)));
  }
  ln_ = encoder->register_module("ln", norm(o.hidden));
  const auto heads = register_module("heads", std::make_shared<Group>());
  head_ = heads->register_module("head", torch::nn::Linear(o.hidden, o.classes));

  torch::nn::init::normal_(pos_embedding_, 0, 0.02);
  truncated_normal(conv_proj_->weight,
                   std::sqrt(1.0 / static_cast<double>(3 * o.patch_size * o.patch_size)));
  torch::nn::init::zeros_(conv_proj_->bias);
  torch::nn::init::zeros_(head_->weight);
  torch::nn::init::zeros_(head_->bias);
}

torch::Tensor VisionTransformerImpl::forward(const torch::Tensor& images) {
  TORCH_CHECK(images.dim() == 4 && images.size(2) == options_.image_size &&
                  images.size(3) == options_.image_size,
              "VisionTransformer: images are to be ", options_.image_size, " pixels wide and high");
  // [batch, hidden, side, side] -> [batch, patches, hidden]
  torch::Tensor x = conv_proj_->forward(images).flatten(2).transpose(1, 2);
  x = torch::cat({class_token_.expand({x.size(0), -1, -1}), x}, 1) + pos_embedding_;
  x = dropout_->forward(x);
  for (EncoderBlock& block : blocks_) {
    x = options_.checkpoint_activations && is_training()
            ? checkpoint([block](const at::Tensor& in) mutable { return block->forward(in); }, x)
            : block->forward(x);
  }
  return head_->forward(ln_->forward(x).select(1, 0));
}

void VisionTransformerImpl::use_attention(SelfAttentionImpl::Way way) {
  apply([way](torch::nn::Module& module) {
    if (auto* attention = module.as<SelfAttentionImpl>()) attention->use(way);
  });
}

VisionTransformerOptions vit_for_cifar10() {
  return {.image_size = 32,
          .patch_size = 4,
          .layers = 12,
          .heads = 8,
          .hidden = 384,
          .mlp = 768,
          .dropout = 0,
          .attention_dropout = 0,
          .classes = 10};
}

}  // namespace dtrain::train

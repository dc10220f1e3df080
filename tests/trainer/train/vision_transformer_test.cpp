#include "trainer/models/vision_transformer.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <stdexcept>

#include "trainer/train/tensors.hpp"

using namespace dtrain::train;

namespace {

VisionTransformerOptions small() {
  return {.image_size = 8,
          .patch_size = 4,
          .layers = 2,
          .heads = 2,
          .hidden = 8,
          .mlp = 12,
          .dropout = 0,
          .attention_dropout = 0,
          .classes = 3};
}

// tests/golden/vision_transformer/make.py
TensorMap golden() {
  const char* folder = std::getenv("DTRAIN_GOLDEN");
  if (folder == nullptr) throw std::runtime_error("DTRAIN_GOLDEN is not set; run meson test");
  return read_tensors(std::filesystem::path(folder) / "vision_transformer/vit.safetensors");
}

// The tensors whose names begin so, without that.
TensorMap part(const TensorMap& tensors, const std::string& prefix) {
  TensorMap result;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) result.emplace(name.substr(prefix.size()), tensor);
  }
  return result;
}

}  // namespace

TEST_CASE("a VisionTransformer computes what Python's does, either way, and its gradients") {
  const TensorMap all = golden();
  for (const auto way : {SelfAttentionImpl::Way::matmul, SelfAttentionImpl::Way::fused,
                         SelfAttentionImpl::Way::automatic}) {
    VisionTransformer model(small());
    load_state_dict(*model, part(all, "model."));  // strictly: the names are torchvision's
    model->use_attention(way);
    const at::Tensor output = model->forward(all.at("images"));
    CHECK(output.allclose(all.at("output"), 1e-4, 1e-5));
    output.square().sum().backward();
    const TensorMap gradients = part(all, "gradient.");
    CHECK(gradients.size() == model->parameters().size());
    for (const auto& item : model->named_parameters()) {
      CAPTURE(item.key());
      CHECK(item.value().grad().allclose(gradients.at(item.key()), 1e-3, 1e-4));
    }
  }
}

TEST_CASE("the one for CIFAR-10 begins with the class token's guess") {
  const VisionTransformer model(vit_for_cifar10());
  std::int64_t numbers = 0;
  for (const at::Tensor& parameter : model->parameters()) numbers += parameter.numel();
  // Patches, positions, token; 12 blocks; norm and head.
  CHECK(numbers == (48 * 384 + 384) + 65 * 384 + 384 +
                       12 * (4 * 384 * 384 + 4 * 384 + 2 * 384 * 768 + 768 + 384 + 4 * 384) +
                       2 * 384 + 384 * 10 + 10);
  const at::NoGradGuard no_grad;
  VisionTransformer fresh(vit_for_cifar10());
  CHECK(fresh->forward(at::randn({1, 3, 32, 32})).eq(0).all().item<bool>());  // the head is zero
}

TEST_CASE("sizes that do not divide are refused") {
  VisionTransformerOptions options = small();
  options.image_size = 9;
  CHECK_THROWS_AS(VisionTransformer{options}, c10::Error);
  options = small();
  options.heads = 3;
  CHECK_THROWS_AS(VisionTransformer{options}, c10::Error);
}

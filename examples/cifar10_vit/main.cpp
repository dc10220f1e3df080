// A VisionTransformer on CIFAR-10, data-parallel, as the Ray Train tutorial trains one: 12 layers,
// 8 heads, 384 wide, AdamW.

#include <ATen/Context.h>

#include "examples/common/cifar.hpp"
#include "trainer/core/run.hpp"
#include "trainer/models/vision_transformer.hpp"

namespace {

int train_vit(const Flags& flags) {
  namespace dt = dtrain::train;
  dt::Context context =
      dt::Context::join(dt::read_environment(), {.num_threads = flags.num_threads});
  context.seed(flags.seed);
  const dt::VisionTransformer model(dt::vit_for_cifar10());
  Recipe recipe = cifar10_recipe(flags, "vit");
  recipe.optimizer = [&](const torch::nn::Module& module) {
    return std::make_unique<dt::AdamW>(dt::decay_groups(module),
                                       dt::AdamWOptions{.lr = flags.lr, .weight_decay = 1e-2});
  };
  return train_classifier(model.ptr(), context, flags, recipe);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.data = "data/cifar-10-batches-bin";
  flags.batch_size_per_worker = 256;  // 512 over two ranks
  flags.lr = 1e-3;
  if (const auto code = read_flags(argc, argv, "Trains a VisionTransformer on CIFAR-10.", flags)) {
    return *code;
  }
  return dtrain::train::run([&flags] { return train_vit(flags); });
}

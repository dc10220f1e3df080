// A VisionTransformer on CIFAR-10, data-parallel, as the Ray Train tutorial trains one: 12 layers,
// 8 heads, 384 wide, AdamW.

#include "examples/common/cifar.hpp"

using namespace dtrain::train;

namespace {

int train(const Flags& flags) {
  const Recipe recipe = cifar10_recipe(flags, "vit");
  begin(flags, recipe);
  const auto model = prepare_model(VisionTransformer(vit_for_cifar10()),
                                   {.precision = precision_of(flags.precision)});
  const auto optimizer =
      prepare_optimizer(adamw(decay_groups(*model), {.lr = flags.lr, .weight_decay = 1e-2}));
  return fit(model, *optimizer, prepare_loaders(flags, recipe), flags);
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
  return run([&flags] { return train(flags); });
}

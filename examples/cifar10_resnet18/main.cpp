// ResNet-18 on CIFAR-10, data-parallel: SGD with momentum under one cycle of the learning rate.

#include "examples/common/cifar.hpp"
#include "examples/common/cifar_resnet.hpp"

using namespace dtrain::train;

namespace {

int train(const Flags& flags) {
  const Recipe recipe = cifar10_recipe(flags, "resnet18-small");
  begin(flags, recipe);
  const auto model =
      prepare_model(small_resnet18(/*classes=*/10), {.precision = precision_of(flags.precision)});
  const auto optimizer = prepare_optimizer(
      sgd(decay_groups(*model),
          {.lr = flags.lr, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true}));
  const Loaders loaders = prepare_loaders(flags, recipe);
  // A resume with another number of ranks, and so of steps, goes on at the same share of the cycle.
  const auto scheduler =
      prepare_scheduler(one_cycle_schedule({.max_lr = flags.lr,
                                            .total_steps = flags.epochs * loaders.train.batches(),
                                            .cycle_momentum = false}));
  return fit(model, *optimizer, loaders, flags, scheduler.get());
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.data = "data/cifar-10-batches-bin";
  flags.epochs = 10;
  flags.lr = 0.1;
  if (const auto code = read_flags(argc, argv, "Trains ResNet-18 on CIFAR-10.", flags)) {
    return *code;
  }
  return run([&flags] { return train(flags); });
}

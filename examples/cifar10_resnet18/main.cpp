// ResNet-18 on CIFAR-10, data-parallel: SGD with momentum under one cycle of the learning rate.

#include <ATen/Context.h>

#include "examples/common/cifar.hpp"
#include "examples/common/cifar_resnet.hpp"
#include "trainer/core/run.hpp"

namespace {

int train_resnet(const Flags& flags) {
  namespace dt = dtrain::train;
  dt::Context context =
      dt::Context::join(dt::read_environment(), {.num_threads = flags.num_threads});
  context.seed(flags.seed);
  const dt::ResNet model = small_resnet18(/*classes=*/10);
  Recipe recipe = cifar10_recipe(flags, "resnet18-small");
  recipe.optimizer = [&](const torch::nn::Module& module) {
    return std::make_unique<dt::Sgd>(
        dt::decay_groups(module),
        dt::SgdOptions{.lr = flags.lr, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  };
  recipe.schedule = [&](std::int64_t steps) {
    return dt::one_cycle_schedule(
        {.max_lr = flags.lr, .total_steps = steps, .cycle_momentum = false});
  };
  return train_classifier(model.ptr(), context, flags, recipe);
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
  return dtrain::train::run([&flags] { return train_resnet(flags); });
}

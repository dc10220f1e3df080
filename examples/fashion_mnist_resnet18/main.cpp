// ResNet-18 on FashionMNIST, data-parallel: the quickstart's training program.

#include "examples/common/classifier.hpp"

using namespace dtrain::train;

namespace {

int train(const Flags& flags) {
  Recipe recipe = mnist_recipe(flags, "resnet18-grey");
  recipe.needs_two = true;  // of an image of 28 pixels the last batch norms see one
  begin(flags, recipe);
  ResNet net = resnet18(/*classes=*/10);
  net->replace_conv1(resnet_conv1(/*channels=*/1));
  const auto model = prepare_model(net, {.precision = precision_of(flags.precision)});
  const auto optimizer = prepare_optimizer(adam(*model, {.lr = flags.lr}));
  return fit(model, *optimizer, prepare_loaders(flags, recipe), flags);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.data = "/usr/share/datasets/fashion-mnist";  // Debian's dataset-fashion-mnist
  if (const auto code = read_flags(argc, argv, "Trains ResNet-18 on FashionMNIST.", flags)) {
    return *code;
  }
  return run([&flags] { return train(flags); });
}

// A small perceptron on MNIST, data-parallel: a job that is over in seconds.

#include "examples/common/classifier.hpp"

using namespace dtrain::train;

namespace {

// MNIST's own files where they are, else FashionMNIST's: they have the same format.
std::string default_data() {
  for (const char* folder : {"data/mnist", "/usr/share/datasets/mnist"}) {
    if (has_mnist(folder)) return folder;
  }
  return "/usr/share/datasets/fashion-mnist";
}

int train(const Flags& flags) {
  const Recipe recipe = mnist_recipe(flags, "mlp");
  begin(flags, recipe);
  const auto model = prepare_model(Mlp(MlpOptions{}), {.precision = precision_of(flags.precision)});
  const auto optimizer = prepare_optimizer(adam(*model, {.lr = flags.lr}));
  return fit(model, *optimizer, prepare_loaders(flags, recipe), flags);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.data = default_data();
  if (const auto code = read_flags(argc, argv, "Trains a perceptron on MNIST.", flags)) {
    return *code;
  }
  return run([&flags] { return train(flags); });
}

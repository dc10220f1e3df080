// A small perceptron on MNIST, data-parallel: a job that is over in seconds.

#include <ATen/Context.h>

#include "examples/common/flags.hpp"
#include "examples/common/train_classifier.hpp"
#include "trainer/core/run.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/train/context.hpp"

namespace {

// MNIST's own files where they are, else FashionMNIST's: they have the same format.
std::string default_data() {
  for (const char* folder : {"data/mnist", "/usr/share/datasets/mnist"}) {
    if (dtrain::train::has_mnist(folder)) return folder;
  }
  return "/usr/share/datasets/fashion-mnist";
}

int train_mlp(const Flags& flags) {
  namespace dt = dtrain::train;
  dt::Context context =
      dt::Context::join(dt::read_environment(), {.num_threads = flags.num_threads});
  context.seed(flags.seed);
  const dt::Mlp model(dt::MlpOptions{});
  return train_classifier(model.ptr(), context, flags, mnist_recipe(flags, "mlp"));
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.data = default_data();
  if (const auto code = read_flags(argc, argv, "Trains a perceptron on MNIST.", flags)) {
    return *code;
  }
  return dtrain::train::run([&flags] { return train_mlp(flags); });
}

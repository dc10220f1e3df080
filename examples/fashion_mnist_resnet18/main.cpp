// ResNet-18 on FashionMNIST, data-parallel: the quickstart's training program.

#include <ATen/Context.h>

#include "examples/common/flags.hpp"
#include "examples/common/train_classifier.hpp"
#include "trainer/core/run.hpp"
#include "trainer/models/resnet.hpp"
#include "trainer/train/context.hpp"

namespace {

int train_resnet(const Flags& flags) {
  namespace dt = dtrain::train;
  dt::Context context =
      dt::Context::join(dt::read_environment(), {.num_threads = flags.num_threads});
  context.seed(flags.seed);
  dt::ResNet model = dt::resnet18(/*classes=*/10);
  model->replace_conv1(dt::resnet_conv1(/*channels=*/1));
  return train_classifier(model.ptr(), context, flags, mnist_recipe(flags, "resnet18-grey"));
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  flags.data = "/usr/share/datasets/fashion-mnist";  // Debian's dataset-fashion-mnist
  if (const auto code = read_flags(argc, argv, "Trains ResNet-18 on FashionMNIST.", flags)) {
    return *code;
  }
  return dtrain::train::run([&flags] { return train_resnet(flags); });
}

// ResNet-18 on FashionMNIST with the functions: docs/from_pytorch.md shows it beside Python.
// functions DATA [IMAGES]

#include "examples/from_pytorch/data.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;

int train(const std::string& data, std::int64_t limit) {
  init({.storage = "runs/functions"});
  ResNet net = resnet18(/*classes=*/10);
  net->replace_conv1(resnet_conv1(/*channels=*/1));
  auto model = prepare_model(net);
  prepare_optimizer(adam(*net, {.lr = 1e-3}));
  const DataLoader loader =
      prepare_data_loader(fashion_mnist(data, limit, {.batch_size = 128, .shuffle = true}));

  for (const auto epoch : epochs(2)) {
    at::Tensor loss;
    for (const auto& [images, labels] : loader.epoch(epoch)) {
      loss = at::cross_entropy_loss(model(images), labels);
      backward(loss);
      optimizer_step();
      log({{"loss", loss}});
    }
    save_checkpoint({{"loss", loss}});
  }
  shutdown();
  return 0;
}

int main(int argc, char** argv) {
  return run([&] { return train(argc > 1 ? argv[1] : "", argc > 2 ? std::stol(argv[2]) : 0); });
}

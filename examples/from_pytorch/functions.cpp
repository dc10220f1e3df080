// ResNet-18 on FashionMNIST with the functions: docs/from_pytorch.md shows it beside Python.
// functions DATA [IMAGES]

#include "examples/from_pytorch/data.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;

int train(const std::string& data, std::int64_t images) {
  init({.context = {}, .session = {.storage = "runs/functions"}});
  ResNet net = resnet18(/*classes=*/10);
  net->replace_conv1(resnet_conv1(/*channels=*/1));
  auto model = prepare_model(net);
  auto optimizer =
      prepare_optimizer(std::make_shared<Adam>(named_parameters(*net), AdamOptions{.lr = 1e-3}));
  const DataLoader loader =
      prepare_data_loader(fashion_mnist(data, images, {.batch_size = 128, .shuffle = true}));

  Place place = get_checkpoint().value_or(Place{});
  for (; place.epoch < 2; ++place.epoch, place.position = 0) {
    auto pass = loader.pass(place.epoch, place.position);
    double last = 0;
    while (auto batch = pass.next()) {
      const at::Tensor loss = at::cross_entropy_loss((*model)((*batch)[0]), (*batch)[1]);
      backward(loss);
      optimizer_step();
      last = loss.item<double>();
      place.position = pass.position();
      if (++place.step % 200 == 0) report({{"loss", last}}, place);
    }
    report({{"loss", last}}, Place{place.step, place.epoch + 1, 0});
  }
  shutdown();
  return 0;
}

int main(int argc, char** argv) {
  return run([&] { return train(argc > 1 ? argv[1] : "", argc > 2 ? std::stol(argv[2]) : 0); });
}

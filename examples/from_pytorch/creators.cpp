// ResNet-18 on FashionMNIST from creators: docs/from_pytorch.md shows it beside RaySGD.
// creators DATA [IMAGES]

#include <cstdio>

#include "examples/from_pytorch/data.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;

AnyModel model_creator(const nlohmann::json& /*config*/) {
  ResNet net = resnet18(/*classes=*/10);
  net->replace_conv1(resnet_conv1(/*channels=*/1));
  return net;
}

TrainAndValidation data_creator(const nlohmann::json& config) {
  const DataLoaderOptions options{.batch_size = config.at("batch"), .shuffle = true};
  return {fashion_mnist(config.at("data"), config.at("images"), options),
          fashion_mnist(config.at("data"), config.at("images"), options, MnistSplit::test)};
}

std::shared_ptr<Optimizer> optimizer_creator(const AnyModel& model, const nlohmann::json& config) {
  return std::make_shared<Sgd>(named_parameters(model.module()),
                               SgdOptions{.lr = config.at("lr"), .momentum = 0.9});
}

CreatorTrainer::Loss loss_creator(const nlohmann::json& /*config*/) {
  return [](const at::Tensor& outputs, const at::Tensor& labels) {
    return at::cross_entropy_loss(outputs, labels);
  };
}

int main(int argc, char** argv) {
  return run([&] {
    CreatorTrainer trainer({.model_creator = model_creator,
                            .data_creator = data_creator,
                            .optimizer_creator = optimizer_creator,
                            .loss_creator = loss_creator,
                            .scheduler_creator = {},
                            .config = {{"lr", 0.01},
                                       {"batch", 64},
                                       {"data", argc > 1 ? argv[1] : ""},
                                       {"images", argc > 2 ? std::stol(argv[2]) : 0}},
                            .trainer = {}});
    const Metrics stats = trainer.train();
    if (trainer.exit_code() == 0) {  // else it was told to go
      const Metrics tested = trainer.validate();
      session().say("train_loss " + std::to_string(stats.at("train_loss")) + "  val_accuracy " +
                    std::to_string(tested.at("val_accuracy")));
      trainer.save("model.safetensors");
    }
    trainer.shutdown();
    return trainer.exit_code();
  });
}

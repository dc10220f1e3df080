// The program of Ray Train's tutorial: a function that every rank runs, and a TorchTrainer that
// starts them. `./torch_trainer` alone makes itself a job; docs/from_pytorch.md has it beside
// Python.
#include <cstdio>
#include <filesystem>
#include <string>

#include "examples/from_pytorch/data.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;

void train_func(const nlohmann::json& config) {
  ResNet net = resnet18(/*classes=*/10);
  net->replace_conv1(resnet_conv1(/*channels=*/1));
  auto model = prepare_model(net);
  prepare_optimizer(adam(*net, {.lr = config.at("lr")}));
  const DataLoader loader = prepare_data_loader(fashion_mnist(
      config.at("data"), config.at("images"), {.batch_size = config.at("batch"), .shuffle = true}));

  for (const auto epoch : epochs(config.at("epochs"))) {
    at::Tensor loss;
    for (const auto& [images, labels] : loader.epoch(epoch)) {
      loss = at::cross_entropy_loss(model(images), labels);
      backward(loss);
      optimizer_step();
      log({{"loss", loss}});
    }
    save_checkpoint({{"loss", loss}});
  }
}

int main(int argc, char** argv) {
  return run([&] {
    const nlohmann::json config = {{"lr", 1e-3},
                                   {"batch", 128},
                                   {"epochs", 2},
                                   {"data", argc > 1 ? argv[1] : ""},
                                   {"images", argc > 2 ? std::stol(argv[2]) : 0}};
    TorchTrainer trainer(train_func, ScalingConfig{.num_workers = 2, .use_gpu = false},
                         RunConfig{.name = "fashion-mnist",
                                   .checkpoint_config = {.num_to_keep = 2},
                                   .failure_config = {.max_failures = 1}},
                         config);
    const Result result = trainer.fit();
    if (result.error) std::fprintf(stderr, "it failed: %s\n", result.error->c_str());
    for (const auto& [name, value] : result.metrics) std::printf("%s %g\n", name.c_str(), value);
    if (result.checkpoint) std::printf("checkpoint %s\n", result.checkpoint->c_str());
    return result.exit_code;
  });
}

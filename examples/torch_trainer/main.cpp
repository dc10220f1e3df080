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
  auto optimizer = prepare_optimizer(
      std::make_shared<Adam>(named_parameters(*net), AdamOptions{.lr = config.at("lr")}));
  const DataLoader loader = prepare_data_loader(fashion_mnist(
      config.at("data"), config.at("images"), {.batch_size = config.at("batch"), .shuffle = true}));

  Place place = get_checkpoint().value_or(Place{});
  for (; place.epoch < config.at("epochs"); ++place.epoch, place.position = 0) {
    auto pass = loader.pass(place.epoch, place.position);
    double last = 0;
    while (auto batch = pass.next()) {
      const at::Tensor loss = at::cross_entropy_loss((*model)((*batch)[0]), (*batch)[1]);
      backward(loss);
      optimizer_step();
      last = loss.item<double>();
      ++place.step;
    }
    report({{"loss", last}}, Place{place.step, place.epoch + 1, 0});
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

// A search for the hyperparameters of a perceptron on FashionMNIST: `./tune_mnist` alone makes a
// search of itself. docs/tune.md has it beside Ray Tune.
#include <ATen/ATen.h>

#include <cstdio>
#include <string>

#include "examples/from_pytorch/data.hpp"
#include "trainer/trainer.hpp"

using namespace dtrain::train;

void train_func(const nlohmann::json& config) {
  const std::string data = config.value("data", "");
  const std::int64_t images = config.value("images", 0);
  const Mlp net(MlpOptions{.hidden = {config.value("hidden", 128)}});
  auto model = prepare_model(net);
  const auto optimizer = prepare_optimizer(
      sgd(*net, {.lr = config.at("lr"), .momentum = config.value("momentum", 0.9)}));
  const DataLoader train = prepare_data_loader(
      fashion_mnist(data, images, {.batch_size = config.value("batch", 64), .shuffle = true}));
  const DataLoader test = prepare_data_loader(
      fashion_mnist(data, images, {.batch_size = 256}, MnistSplit::test), /*evaluates=*/true);

  get_checkpoint();
  optimizer->set_lr(config.at("lr"));  // which may not be that of the checkpoint
  for (const auto epoch : epochs(config.value("epochs", 9))) {
    for (const auto& [inputs, labels] : train.epoch(epoch)) {
      backward(at::cross_entropy_loss(model(inputs), labels));
      optimizer_step();
    }
    const Evaluation evaluation;
    Accuracy accuracy;
    for (const auto& [inputs, labels] : test.epoch(0)) accuracy.add(model(inputs), labels);
    save_checkpoint({{"accuracy", accuracy.over(context())}});
  }
}

int main(int argc, char** argv) {
  return run([&] {
    const nlohmann::json space = {{"lr", tune::loguniform(1e-4, 1)},
                                  {"batch", tune::choice({32, 64, 128})},
                                  {"hidden", tune::choice({64, 128, 256})},
                                  {"data", argc > 1 ? argv[1] : ""},
                                  {"images", argc > 2 ? std::stol(argv[2]) : 0}};
    Tuner tuner(
        train_func, space,
        TuneConfig{.metric = "accuracy",
                   .mode = "max",
                   .num_samples = 30,
                   .scheduler = {{"algorithm", "asha"}, {"max_t", 9}, {"reduction_factor", 3}}},
        RunConfig{.name = "tune-mnist", .checkpoint_config = {.num_to_keep = 1}});
    const ResultGrid results = tuner.fit();
    if (results.error) std::fprintf(stderr, "it failed: %s\n", results.error->c_str());
    const TrialResult& best = results.get_best_result();
    std::printf("the best of %zu: accuracy %g with %s\n", results.size(), *best.value,
                best.params.dump().c_str());
    return results.exit_code;
  });
}

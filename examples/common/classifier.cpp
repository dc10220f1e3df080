#include "examples/common/classifier.hpp"

#include <ATen/ATen.h>

#include <cstdio>

using namespace dtrain::train;

namespace {

struct Score {
  double loss = 0;
  double accuracy = 0;
};

// Each test image is seen by exactly one rank, so that the result is exact.
Score evaluate(const Classifier& model, const DataLoader& test) {
  const Evaluation evaluation;
  WeightedMean loss;
  Accuracy accuracy;
  for (const auto& [images, labels] : test.epoch(0)) {
    const at::Tensor scores = model(images);
    loss.add(at::cross_entropy_loss(scores, labels).item<double>(), labels.size(0));
    accuracy.add(scores, labels);
  }
  return {loss.over(context()), accuracy.over(context())};
}

}  // namespace

Recipe mnist_recipe(const Flags& flags, const std::string& model) {
  const auto open = [&](MnistSplit split) {
    return as_image_source(
        std::make_shared<const LabelledImages>(read_mnist(flags.data, split, flags.limit)));
  };
  Recipe recipe;
  recipe.model = model;
  recipe.train = open(MnistSplit::train);
  recipe.test = open(MnistSplit::test);
  recipe.train_transform.rows = recipe.train_transform.columns = 28;
  recipe.test_transform = recipe.train_transform;
  return recipe;
}

void begin(const Flags& flags, const Recipe& recipe) {
  InitOptions options;
  if (!flags.storage.empty()) options.storage = flags.storage;
  if (!flags.metrics_file.empty()) options.metrics_file = flags.metrics_file;
  if (!flags.tensorboard.empty()) options.tensorboard = flags.tensorboard;
  options.hyperparameters = {{"batch_size_per_worker", flags.batch_size_per_worker},
                             {"epochs", flags.epochs},
                             {"lr", flags.lr},
                             {"seed", flags.seed},
                             {"model", recipe.model},
                             {"classes", recipe.train->classes()},
                             {"rows", recipe.test_transform.rows},
                             {"columns", recipe.test_transform.columns},
                             {"mean", recipe.test_transform.mean},
                             {"std", recipe.test_transform.std}};
  options.log_every_n_steps = 25;
  options.checkpoint_every_n_steps = flags.checkpoint_every;
  options.context.num_threads = flags.num_threads;
  init(options);
  set_seed(flags.seed);
}

Loaders prepare_loaders(const Flags& flags, const Recipe& recipe) {
  ImageBatches batches;
  batches.transform = recipe.train_transform;
  batches.seed = flags.seed;
  batches.pool = BufferPool(/*pinned=*/!context().device().is_cpu());
  if (flags.skip_bad_samples) batches.bad_samples = BadSamples::skip;
  const std::int64_t ranks = context().world_size();
  const std::int64_t of_rank = (recipe.train->size() + ranks - 1) / ranks;
  const DataLoader train = DataLoader::of_images(
      recipe.train, batches,
      {.batch_size = flags.batch_size_per_worker,
       .shuffle = true,
       .drop_last = recipe.needs_two && of_rank > 1 && of_rank % flags.batch_size_per_worker == 1,
       .workers = flags.workers,
       .seed = flags.seed});
  batches.transform = recipe.test_transform;
  const DataLoader test = DataLoader::of_images(recipe.test, batches, {.batch_size = 256});
  return {prepare_data_loader(train), prepare_data_loader(test, /*evaluates=*/true)};
}

int fit(const Classifier& model, Optimizer& optimizer, const Loaders& loaders, const Flags& flags,
        Scheduler* scheduler) {
  session().say("training on " + std::to_string(loaders.train.samples()) + " images with " +
                std::to_string(context().world_size()) + " ranks, " +
                std::to_string(loaders.train.batches()) + " steps an epoch");
  Metrics speed;  // of the last epoch that has one
  std::optional<Score> score;
  for (const auto epoch : epochs(flags.epochs)) {
    for (const auto& [images, labels] : loaders.train.epoch(epoch)) {
      at::Tensor loss;
      {
        const auto in_precision = autocast();
        loss = at::cross_entropy_loss(model(images), labels);
      }
      backward(loss);
      optimizer_step();
      log({{"loss", loss}, {"lr", optimizer.lr()}});  // the rate that the step was taken with
      if (scheduler != nullptr) scheduler->after_step();
    }
    if (Metrics its = throughput(); !its.empty()) speed = std::move(its);
    score = evaluate(model, loaders.test);
    Metrics metrics{{"loss", score->loss}, {"accuracy", score->accuracy}};
    for (const char* name : {"samples_per_second", "data_wait_percent"}) {
      if (speed.contains(name)) metrics[name] = speed.at(name);
    }
    if (const auto& skipped = loaders.train.skipped()) {
      metrics["skipped_samples"] = all_reduce_sum(static_cast<double>(skipped->count()));
    }
    if (can_checkpoint()) {
      save_checkpoint(metrics);
    } else {
      report(metrics);
    }
  }
  if (!score) score = evaluate(model, loaders.test);  // nothing was left to train
  session().finish();

  char line[160];
  std::snprintf(line, sizeof line, "test accuracy %.4f  loss %.4f  after %lld steps",
                score->accuracy, score->loss, static_cast<long long>(global_step()));
  session().say(line);
  if (speed.contains("samples_per_second")) {
    std::snprintf(line, sizeof line, "%.1f samples/s over %d ranks, without the first %lld steps",
                  speed.at("samples_per_second"), context().world_size(),
                  static_cast<long long>(kWarmUpSteps));
    session().say(line);
  }
  shutdown();
  return 0;
}

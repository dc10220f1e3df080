#pragma once

#include <ATen/ATen.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "examples/common/flags.hpp"
#include "trainer/core/error.hpp"
#include "trainer/data/sampler.hpp"
#include "trainer/report/step_times.hpp"
#include "trainer/train/batches.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/measures.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/precision.hpp"
#include "trainer/train/scheduler.hpp"
#include "trainer/train/session.hpp"

// The loop that the image classifiers share, as a program of one's own would have it.

// What is trained on, and how.
struct Recipe {
  std::string model;  // its name, for examples/predict
  dtrain::train::Images train;
  dtrain::train::Images test;
  dtrain::train::Transform train_transform;
  dtrain::train::Transform test_transform;
  std::function<std::unique_ptr<dtrain::train::Optimizer>(const torch::nn::Module&)> optimizer;
  // Of the learning rate, from the number of steps in all; constant if empty.
  std::function<dtrain::train::SchedulePtr(std::int64_t steps)> schedule;
};

struct Score {
  double loss = 0;
  double accuracy = 0;
};

// Over all test images, each seen by exactly one rank, so that the result is exact.
template <typename Module>
Score evaluate(dtrain::train::Ddp<Module>& ddp, dtrain::train::Context& context,
               const Recipe& recipe, const dtrain::train::ImageBatches& like) {
  using namespace dtrain::train;
  ddp.sync_buffers();
  ddp.module().eval();
  const at::NoGradGuard no_grad;
  const DistributedSampler sampler(recipe.test->size(), context.rank(), context.world_size(),
                                   {.shuffle = false, .tail = Tail::keep});
  ImageBatches options;
  options.transform = recipe.test_transform;
  options.pool = like.pool;
  options.bad_samples = like.bad_samples;
  options.skipped = like.skipped;
  Loader<ImageBatch> batches(sampler, {.batch_size = 256}, image_batches(recipe.test, options));
  WeightedMean loss;
  Accuracy accuracy;
  while (auto batch = batches.next()) {
    const at::Tensor labels = batch->labels.to(context.device());
    const at::Tensor logits = ddp.module().forward(batch->images.to(context.device()));
    loss.add(at::cross_entropy_loss(logits, labels).template item<double>(), labels.size(0));
    accuracy.add(logits, labels);
  }
  return {loss.over(context), accuracy.over(context)};
}

template <typename Module>
int train_classifier(const std::shared_ptr<Module>& model, dtrain::train::Context& context,
                     const Flags& flags, const Recipe& recipe) {
  using namespace dtrain::train;
  using Part = StepTimes::Part;
  constexpr std::int64_t kWarmUpSteps =
      20;  // left out of the speed: memory is new, buckets are tuned
  constexpr std::int64_t kLogEvery = 25;

  model->to(context.device());
  Ddp ddp(model, context);
  const std::unique_ptr<Optimizer> optimizer = recipe.optimizer(*model);
  DistributedSampler sampler(recipe.train->size(), context.rank(), context.world_size(),
                             {.seed = flags.seed});
  const std::int64_t batch_size = flags.batch_size_per_worker;
  const std::int64_t steps_per_epoch = (sampler.remaining() + batch_size - 1) / batch_size;
  const std::int64_t all_steps = flags.epochs * steps_per_epoch;

  const Precision precision = precision_of(flags.precision);

  Session::Options session_options;
  if (!flags.storage.empty()) session_options.storage = flags.storage;
  if (!flags.tensorboard.empty()) session_options.tensorboard = flags.tensorboard;
  if (!flags.metrics_file.empty()) session_options.metrics_file = flags.metrics_file;
  session_options.hyperparameters = {{"batch_size_per_worker", batch_size},
                                     {"epochs", flags.epochs},
                                     {"lr", flags.lr},
                                     {"seed", flags.seed},
                                     {"model", recipe.model},
                                     {"classes", recipe.train->classes()},
                                     {"rows", recipe.test_transform.rows},
                                     {"columns", recipe.test_transform.columns},
                                     {"mean", recipe.test_transform.mean},
                                     {"std", recipe.test_transform.std}};
  Session session(context, session_options);
  Scheduler scheduler(*optimizer, recipe.schedule
                                      ? recipe.schedule(all_steps)
                                      : lambda_schedule([](std::int64_t) { return 1.0; }));
  session.keep("scheduler", {.save = [&] { return scheduler.state(); },
                             .load = [&](const auto& state) { scheduler.load_state(state); },
                             .alike = true});
  Place place = session.resume(*model, *optimizer).value_or(Place{});
  session.say("training on " + std::to_string(recipe.train->size()) + " images with " +
              std::to_string(context.world_size()) + " ranks, " + std::to_string(steps_per_epoch) +
              " steps an epoch");

  ImageBatches train_batches;
  train_batches.transform = recipe.train_transform;
  train_batches.seed = flags.seed;
  train_batches.pool = BufferPool(!context.device().is_cpu());
  if (flags.skip_bad_samples) train_batches.bad_samples = BadSamples::skip;
  const std::int64_t first_step = place.step;
  StepTimes times;
  Metrics speed;  // of the last epoch
  double loss_value = 0;
  Score score;
  for (; place.epoch < flags.epochs; ++place.epoch, place.position = 0) {
    model->train();
    sampler.set_epoch(place.epoch, place.position);
    train_batches.epoch = place.epoch;
    Loader<ImageBatch> batches(sampler, {.batch_size = batch_size, .workers = flags.workers},
                               image_batches(recipe.train, train_batches));
    times.begin();
    while (auto batch = batches.next()) {
      times.lap(Part::wait);
      const at::Tensor images = batch->images.to(context.device(), /*non_blocking=*/true);
      const at::Tensor labels = batch->labels.to(context.device(), /*non_blocking=*/true);
      times.lap(Part::copy);
      at::Tensor loss;
      {
        const Autocast in_precision(context.device(), precision);
        loss = at::cross_entropy_loss(ddp(images), labels);
      }
      loss.backward();
      optimizer->step();
      optimizer->zero_grad();
      scheduler.after_step();
      loss_value = loss.template item<double>();
      times.lap(Part::compute);
      times.step(images.size(0));

      ++place.step;
      place.position = sampler.position_after(batches.dealt());
      if (place.step - first_step == kWarmUpSteps) times.take();
      session.check_loss(place.step, loss_value);
      session.progress({.step = place.step,
                        .total = all_steps,
                        .epoch = place.epoch,
                        .message = "",
                        .metrics = {{"loss", loss_value}}});
      if (place.step % kLogEvery == 0) {
        session.report(place.step, {{"loss", loss_value}, {"lr", optimizer->lr()}});
      }
      if (session.preempted()) {
        if (session.can_checkpoint()) {
          session.report(place, {{"loss", loss_value}}, *model, *optimizer);
          session.finish();
        }
        session.say("told to go, after step " + std::to_string(place.step));
        return kExitPreempted;
      }
      const bool epoch_ends = batches.dealt() == sampler.remaining();
      if (flags.checkpoint_every > 0 && place.step % flags.checkpoint_every == 0 && !epoch_ends &&
          session.can_checkpoint()) {
        session.report(place, {{"loss", loss_value}}, *model, *optimizer);
      }
      times.begin();
    }

    if (place.step - first_step > kWarmUpSteps) speed = times.take();
    score = evaluate(ddp, context, recipe, train_batches);
    Metrics metrics{{"loss", score.loss}, {"accuracy", score.accuracy}};
    if (speed.contains("samples_per_second")) {
      speed["samples_per_second"] *= context.world_size();
      metrics["samples_per_second"] = speed["samples_per_second"];
      metrics["data_wait_percent"] = speed["data_wait_percent"];
    }
    if (flags.skip_bad_samples) {
      metrics["skipped_samples"] =
          context.all_reduce_sum(static_cast<double>(train_batches.skipped->count()));
    }
    if (session.can_checkpoint()) {
      // Where the next epoch begins: a resume has nothing of this one to do again.
      session.report(Place{place.step, place.epoch + 1, 0}, metrics, *model, *optimizer);
    } else {
      session.report(place.step, metrics);
    }
  }
  session.finish();

  char line[160];
  std::snprintf(line, sizeof line, "test accuracy %.4f  loss %.4f  after %lld steps",
                score.accuracy, score.loss, static_cast<long long>(place.step));
  session.say(line);
  if (speed.contains("samples_per_second")) {
    std::snprintf(line, sizeof line, "%.1f samples/s over %d ranks, without the first %lld steps",
                  speed["samples_per_second"], context.world_size(),
                  static_cast<long long>(kWarmUpSteps));
    session.say(line);
  }
  return 0;
}

// MNIST or FashionMNIST with Adam: the two small examples.
inline Recipe mnist_recipe(const Flags& flags, const std::string& model) {
  using namespace dtrain::train;
  Recipe recipe;
  recipe.model = model;
  const auto open = [&](MnistSplit split) {
    return as_image_source(
        std::make_shared<const LabelledImages>(read_mnist(flags.data, split, flags.limit)));
  };
  recipe.train = open(MnistSplit::train);
  recipe.test = open(MnistSplit::test);
  recipe.train_transform.rows = recipe.train_transform.columns = 28;
  recipe.test_transform = recipe.train_transform;
  recipe.optimizer = [lr = flags.lr](const torch::nn::Module& module) {
    return std::make_unique<Adam>(named_parameters(module), AdamOptions{.lr = lr});
  };
  return recipe;
}

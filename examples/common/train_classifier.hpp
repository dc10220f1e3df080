#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "examples/common/flags.hpp"
#include "trainer/core/error.hpp"
#include "trainer/data/idx.hpp"
#include "trainer/data/sampler.hpp"
#include "trainer/train/batches.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/session.hpp"

// The loop that the image classifiers share, as a program of one's own would have it.

struct Score {
  double loss = 0;
  double accuracy = 0;
};

// Over all test images, each seen by exactly one rank, so that the result is exact.
template <typename Module>
Score evaluate(dtrain::train::Ddp<Module>& ddp, dtrain::train::Context& context,
               const std::shared_ptr<const dtrain::train::LabelledImages>& test) {
  using namespace dtrain::train;
  ddp.sync_buffers();
  ddp.module().eval();
  const at::NoGradGuard no_grad;
  const DistributedSampler sampler(test->size(), context.rank(), context.world_size(),
                                   {.shuffle = false, .tail = Tail::keep});
  Loader<ImageBatch> batches(sampler, {.batch_size = 256}, image_batches(test));
  double loss = 0;
  double correct = 0;
  while (auto batch = batches.next()) {
    const at::Tensor labels = batch->labels.to(context.device());
    const at::Tensor logits = ddp.module().forward(batch->images.to(context.device()));
    loss += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>();
    correct += logits.argmax(1).eq(labels).sum().item<double>();
  }
  const auto sums = context.all_reduce_sum(std::vector{loss, correct});
  const auto count = static_cast<double>(test->size());
  return {sums[0] / count, sums[1] / count};
}

template <typename Module>
int train_classifier(const std::shared_ptr<Module>& model, dtrain::train::Context& context,
                     const Flags& flags) {
  using namespace dtrain::train;
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kWarmUpSteps = 10;  // left out of the speed
  constexpr std::int64_t kLogEvery = 25;

  const auto train = std::make_shared<const LabelledImages>(
      read_mnist(flags.data, MnistSplit::train, flags.limit));
  const auto test =
      std::make_shared<const LabelledImages>(read_mnist(flags.data, MnistSplit::test, flags.limit));

  model->to(context.device());
  Ddp ddp(model, context);
  Adam optimizer(named_parameters(*model), {.lr = flags.lr});
  Session::Options session_options;
  if (!flags.storage.empty()) session_options.storage = flags.storage;
  Session session(context, session_options);
  Place place = session.resume(*model, optimizer).value_or(Place{});

  DistributedSampler sampler(train->size(), context.rank(), context.world_size(),
                             {.seed = flags.seed});
  const std::int64_t batch_size = flags.batch_size_per_worker;
  const std::int64_t steps_per_epoch = (sampler.remaining() + batch_size - 1) / batch_size;
  session.say("training on " + std::to_string(train->size()) + " images with " +
              std::to_string(context.world_size()) + " ranks, " + std::to_string(steps_per_epoch) +
              " steps an epoch");

  const std::int64_t first_step = place.step;
  auto started = Clock::now();
  double seconds = 0;        // of training alone, after the warm-up
  std::int64_t counted = 0;  // images of this rank in them
  double loss_value = 0;
  Score score;
  for (; place.epoch < flags.epochs; ++place.epoch, place.position = 0) {
    model->train();
    sampler.set_epoch(place.epoch, place.position);
    Loader<ImageBatch> batches(sampler, {.batch_size = batch_size}, image_batches(train));
    std::int64_t taken = 0;
    started = Clock::now();
    while (auto batch = batches.next()) {
      const at::Tensor logits = ddp(batch->images.to(context.device()));
      at::Tensor loss = at::cross_entropy_loss(logits, batch->labels.to(context.device()));
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();

      loss_value = loss.item<double>();
      taken += batch->images.size(0);
      ++place.step;
      place.position = sampler.position_after(taken);
      if (place.step - first_step > kWarmUpSteps) {
        counted += batch->images.size(0);
        seconds += std::chrono::duration<double>(Clock::now() - started).count();
      }
      started = Clock::now();

      session.progress({.step = place.step,
                        .total = flags.epochs * steps_per_epoch,
                        .epoch = place.epoch,
                        .message = "",
                        .metrics = {{"loss", loss_value}}});
      if (place.step % kLogEvery == 0) session.report(place.step, {{"loss", loss_value}});
      const bool epoch_ends = taken == sampler.remaining();
      if (flags.checkpoint_every > 0 && place.step % flags.checkpoint_every == 0 && !epoch_ends &&
          session.can_checkpoint()) {
        session.report(place, {{"loss", loss_value}}, *model, optimizer);
        started = Clock::now();
      }
    }

    score = evaluate(ddp, context, test);
    Metrics metrics{{"loss", score.loss}, {"accuracy", score.accuracy}};
    if (seconds > 0) {
      metrics["samples_per_second"] = static_cast<double>(counted * context.world_size()) / seconds;
    }
    if (session.can_checkpoint()) {
      // Where the next epoch begins: a resume has nothing of this one to do again.
      const Place next{place.step, place.epoch + 1, 0};
      const auto path = session.report(next, metrics, *model, optimizer);
      session.say("checkpoint " + path.string());
    } else {
      session.report(place.step, metrics);
    }
  }

  char line[160];
  std::snprintf(line, sizeof line, "test accuracy %.4f  loss %.4f  after %lld steps",
                score.accuracy, score.loss, static_cast<long long>(place.step));
  session.say(line);
  if (seconds > 0) {
    std::snprintf(line, sizeof line, "%.1f samples/s over %d ranks, without the first %lld steps",
                  static_cast<double>(counted * context.world_size()) / seconds,
                  context.world_size(), static_cast<long long>(kWarmUpSteps));
    session.say(line);
  }
  return 0;
}

// Trainings with several optimizers, and those that look for a rate first.
#include <ATen/ATen.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "tests/trainer/api/api_jobs.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train::test {

void fill_by_formula(torch::nn::Module& module, double offset) {
  const at::NoGradGuard no_grad;
  double i = 0;
  for (at::Tensor& parameter : module.parameters()) {
    const at::Tensor index = at::arange(parameter.numel(), at::kDouble);
    parameter.copy_((at::sin(index * 0.7 + i + offset) * 0.4).to(at::kFloat).view_as(parameter));
    i += 1;
  }
}

TwoLayers::TwoLayers(std::int64_t in, std::int64_t between, std::int64_t out, double offset)
    : first_(register_module("first", torch::nn::Linear(in, between))),
      second_(register_module("second", torch::nn::Linear(between, out))) {
  fill_by_formula(*this, offset);
}

at::Tensor TwoLayers::forward(const at::Tensor& inputs) {
  return second_->forward(at::tanh(first_->forward(inputs)));
}

at::Tensor Gan::training_step(const Batch& batch, std::int64_t /*index*/) {
  if (trainer().global_step() == number_of("TEST_DIE_AT", -1)) {
    session().finish();
    ::raise(SIGKILL);
  }
  const auto criterion = [](const at::Tensor& scores, double wanted) {
    return at::binary_cross_entropy_with_logits(scores, at::full_like(scores, wanted));
  };
  Optimizer& g = *optimizers()[0];
  Optimizer& d = *optimizers()[1];
  at::Tensor d_loss;
  {
    const auto only = toggle_optimizer(d);
    const at::Tensor fake = generator_->forward(batch[1]);
    if (fake.requires_grad()) throw Error("the generator is on");
    d.zero_grad();
    d_loss = (criterion(discriminator_->forward(batch[0]), 1) +
              criterion(discriminator_->forward(fake), 0)) /
             2;
    manual_backward(d_loss);
    d.step();
  }
  at::Tensor g_loss;
  {
    const auto only = toggle_optimizer(g);
    g.zero_grad();
    g_loss = criterion(discriminator_->forward(generator_->forward(batch[1])), 1);
    manual_backward(g_loss);
    g.step();
  }
  lr_scheduler(0).after_step();
  log("g_loss", g_loss, {.sync_dist = true});
  losses.push_back(all_reduce_mean(d_loss.item<double>()));
  losses.push_back(all_reduce_mean(g_loss.item<double>()));
  return d_loss;
}

Optimizers Gan::configure_optimizers() {
  return {{"generator",
           std::make_shared<Sgd>(train::named_parameters(*generator_),
                                 SgdOptions{.lr = 0.2, .momentum = 0.9}),
           exponential_schedule(0.97)},
          {"discriminator", std::make_shared<Adam>(train::named_parameters(*discriminator_),
                                                   AdamOptions{.lr = 1e-2, .beta1 = 0.5})}};
}

DataLoader Gan::train_dataloader() {
  const at::Tensor rows = at::arange(160, at::kDouble).unsqueeze(1);
  const at::Tensor real = at::sin(rows * 1.3 + at::arange(8) * 0.9).to(at::kFloat);
  const at::Tensor noise = at::cos(rows * 2.1 + at::arange(4) * 1.7).to(at::kFloat);
  return DataLoader::of_tensors({real, noise}, {.batch_size = 8 / number_of("WORLD_SIZE", 1)});
}

namespace {

std::string of_rank(const char* name) {
  return name + std::to_string(context().rank()) + ".safetensors";
}

// Writes the losses of the steps that it trains as JSON.
int gan(const std::filesystem::path& folder) {
  TrainerOptions options;
  options.strategy = std::getenv("TEST_ZERO") != nullptr ? "zero1" : "ddp";
  options.default_root_dir = folder / "storage";
  options.log_every_n_steps = 1;
  ModelCheckpoint::Options keep;
  keep.every_n_train_steps = 5;
  options.callbacks = {std::make_shared<ModelCheckpoint>(keep),
                       std::make_shared<LearningRateMonitor>()};
  Trainer trainer(options);
  auto module = std::make_shared<Gan>();
  const int code = trainer.fit(module);
  write_weights(folder / of_rank("final-"), *module);
  const Metrics& metrics = trainer.callback_metrics();
  if (!metrics.contains("g_loss") || !metrics.contains("lr-discriminator")) throw Error("metrics");
  std::ofstream(folder / ("losses-" + std::to_string(context().rank())))
      << nlohmann::json{{"losses", module->losses}, {"lr", module->optimizers()[0]->lr()}};
  return code;
}

// With TEST_LR_FIND a search comes first, which must leave nothing behind.
int lr_find(const std::filesystem::path& folder) {
  TrainerOptions options;
  options.seed = 5;
  options.accumulate_grad_batches = 3;
  options.gradient_clip_val = 0.5;
  options.strategy = std::getenv("TEST_ZERO") != nullptr ? "zero1" : "ddp";
  Trainer trainer(options);
  at::manual_seed(4);
  auto module = std::make_shared<SmallModule>(
      SmallModule::Options{.samples = 40, .dropout = true, .plain_sgd = false});
  if (std::getenv("TEST_LR_FIND") != nullptr) {
    LrFinderOptions search;
    search.min_lr = 1e-3;
    search.num_training = 12;  // over an epoch's end
    search.early_stop_threshold.reset();
    const LrFinderResult found = trainer.lr_find(module, search);
    if (found.points.size() != 12) throw Error("all points");
    if (!all_gather(nlohmann::json(found.points.back().loss)).back().is_number()) throw Error("");
    found.save_csv(folder / ("found-" + std::to_string(context().rank()) + ".csv"));
    if (!trainer.callback_metrics().empty()) throw Error("metrics of the search");
  }
  const int code = trainer.fit(module);
  write_weights(folder / of_rank("final-"), *module);
  return code;
}

}  // namespace

const ApiJobs& optimizer_jobs() {
  static const ApiJobs jobs{{"gan", gan}, {"lr_find", lr_find}};
  return jobs;
}

}  // namespace dtrain::train::test

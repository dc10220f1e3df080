#include "trainer/api/creator_trainer.hpp"

#include <ATen/ATen.h>

#include "trainer/core/error.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train {

class CreatorTrainer::Created final : public Module {
 public:
  explicit Created(Options its)
      : options(std::move(its)), model(options.model_creator(options.config)) {
    register_module("model", model.ptr());
    loss = options.loss_creator ? options.loss_creator(options.config)
                                : [](const at::Tensor& outputs, const at::Tensor& labels) {
                                    return at::cross_entropy_loss(outputs, labels);
                                  };
    data.emplace(options.data_creator(options.config));
  }

  at::Tensor training_step(const Batch& batch, std::int64_t /*index*/) override {
    at::Tensor value = loss(model.forward(batch[0]), batch[1]);
    last_loss = value.item<double>();
    log("train_loss", last_loss,
        {.on_step = false, .on_epoch = true, .sync_dist = true, .prog_bar = true});
    ++batches;
    samples += batch.size();
    return value;
  }

  void validation_step(const Batch& batch, std::int64_t /*index*/) override {
    const at::Tensor outputs = model.forward(batch[0]);
    const LogOptions synced{.on_step = {}, .on_epoch = {}, .sync_dist = true, .prog_bar = false};
    log("val_loss", loss(outputs, batch[1]), synced);
    if (outputs.dim() == 2 && batch[1].scalar_type() == at::kLong) {
      log("val_accuracy", outputs.argmax(1).eq(batch[1]).to(at::kDouble).mean(), synced);
    }
    samples += batch.size();
  }

  Optimizers configure_optimizers() override {
    return {options.optimizer_creator(model, options.config),
            options.scheduler_creator ? options.scheduler_creator(options.config) : nullptr,
            options.scheduler_step_freq};
  }
  DataLoader train_dataloader() override { return data->train; }
  std::optional<DataLoader> val_dataloader() override { return data->validation; }

  Options options;
  AnyModel model;
  Loss loss;
  std::optional<TrainAndValidation> data;
  double last_loss = 0;
  std::int64_t batches = 0;
  std::int64_t samples = 0;
};

CreatorTrainer::CreatorTrainer(Options options) {
  if (!options.model_creator) throw Error("CreatorTrainer: model_creator is missing");
  if (!options.data_creator) throw Error("CreatorTrainer: data_creator is missing");
  if (!options.optimizer_creator) throw Error("CreatorTrainer: optimizer_creator is missing");
  TrainerOptions trainer = options.trainer;
  trainer.val_check_interval = 0;  // validate() does
  trainer.max_epochs = -1;
  if (trainer.max_steps < 0) trainer.max_steps = std::numeric_limits<std::int64_t>::max();
  trainer_ = std::make_unique<Trainer>(std::move(trainer));
  module_ = std::make_shared<Created>(std::move(options));
  trainer_->prepare(module_);
}

CreatorTrainer::~CreatorTrainer() = default;

Metrics CreatorTrainer::train() {
  module_->batches = 0;
  module_->samples = 0;
  const std::int64_t epoch = trainer_->current_epoch();
  exit_code_ = trainer_->run_until(epoch + 1);
  Metrics metrics{{"epoch", static_cast<double>(epoch + 1)},
                  {"batch_count", static_cast<double>(module_->batches)},
                  {"num_samples", all_reduce_sum(static_cast<double>(module_->samples))},
                  {"last_train_loss", module_->last_loss}};
  const Metrics& logged = trainer_->callback_metrics();
  if (const auto found = logged.find("train_loss"); found != logged.end()) metrics.insert(*found);
  return metrics;
}

Metrics CreatorTrainer::validate() {
  module_->samples = 0;
  const Metrics logged = trainer_->validate(module_);
  Metrics metrics{{"num_samples", all_reduce_sum(static_cast<double>(module_->samples))}};
  for (const char* name : {"val_loss", "val_accuracy"}) {
    if (const auto found = logged.find(name); found != logged.end()) metrics.insert(*found);
  }
  return metrics;
}

torch::nn::Module& CreatorTrainer::get_model() {
  return module_->model.module();
}

TensorMap CreatorTrainer::state_dict() {
  return train::state_dict(get_model());
}

void CreatorTrainer::load_state_dict(const TensorMap& tensors) {
  train::load_state_dict(get_model(), tensors);
}

void CreatorTrainer::save(const std::filesystem::path& path) {
  std::string trouble;
  if (context().is_first()) {
    try {
      FileSink sink(path);
      write_tensors(sink, state_dict());
      sink.finish();
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  }
  trouble = context().broadcast(trouble);
  if (!trouble.empty()) throw Error(trouble);
}

void CreatorTrainer::load(const std::filesystem::path& path) {
  load_state_dict(read_tensors(path));
}

void CreatorTrainer::shutdown() {
  trainer_->finish();
  module_.reset();
  trainer_.reset();
  train::shutdown();
}

}  // namespace dtrain::train

#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/api/data_loader.hpp"
#include "trainer/core/metrics.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/scheduler.hpp"

namespace dtrain::train {

class Trainer;

// What configure_optimizers returns: an optimizer, and how its rate moves.
struct Optimizers {
  std::shared_ptr<Optimizer> optimizer;
  SchedulePtr schedule;  // constant if null
  Scheduler::Per per = Scheduler::Per::step;
};

struct LogOptions {
  // Unset: on_step in training, on_epoch in validation.
  std::optional<bool> on_step;
  std::optional<bool> on_epoch;  // the mean over the epoch's batches, by their samples
  bool sync_dist = false;        // over all ranks; else rank 0's own is what is kept
  bool prog_bar = false;
};

// What is logged in an epoch. The Trainer has one for training and one for validation.
class MetricLog {
 public:
  explicit MetricLog(bool on_step, bool on_epoch) : on_step_(on_step), on_epoch_(on_epoch) {}

  void add(const std::string& name, double value, std::int64_t samples, const LogOptions& options);
  // The step's values since the last call. Collective if `flushes`; else they are forgotten.
  Metrics take_step(Context& context, bool flushes);
  // The epoch's means. Collective. Ranks may have logged different names, or nothing.
  Metrics take_epoch(Context& context);
  const Metrics& progress_bar() const { return progress_bar_; }

  // What is summed up so far, for a checkpoint within an epoch: of this rank.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  struct Entry {
    LogOptions options;
    bool on_step = false;
    bool on_epoch = false;
    double last = 0;  // of this step
    bool is_new = false;
    double sum = 0;
    double samples = 0;
  };
  std::string step_name(const std::string& name, const Entry& entry) const;

  bool on_step_;
  bool on_epoch_;
  std::map<std::string, Entry> entries_;
  Metrics progress_bar_;
};

// A model that knows how it is trained, as Lightning's LightningModule:
//
//     class Classifier : public Module {
//      public:
//       Classifier() : net(register_module("net", Net())) {}
//       at::Tensor training_step(const Batch& batch, std::int64_t) override {
//         const auto loss = cross_entropy(net->forward(batch[0]), batch[1]);
//         log("train_loss", loss, {.prog_bar = true});
//         return loss;
//       }
//       Optimizers configure_optimizers() override {
//         return {std::make_shared<Adam>(trained_parameters(), AdamOptions{})};
//       }
//       DataLoader train_dataloader() override { … }
//     };
//     Trainer trainer({.max_epochs = 3});
//     return trainer.fit(std::make_shared<Classifier>());
//
// The Trainer moves batches to the device, runs training_step in training mode under DDP and the
// precision asked for, and validation_step in evaluation mode without gradients. Submodules that a
// program has put into evaluation mode (frozen layers) stay in it. All methods run on
// the training's thread. train_dataloader's samples are shared out over the ranks by the Trainer.
class Module : public torch::nn::Module {
 public:
  // The loss: a scalar, the mean over the batch. Every rank has as many batches; a forward pass
  // uses the same parameters each time (else DdpOptions::find_unused_parameters).
  virtual at::Tensor training_step(const Batch& batch, std::int64_t batch_index) = 0;
  // Each sample comes to one rank, exactly once: ranks may have different numbers of batches, so
  // collectives are not possible here.
  virtual void validation_step(const Batch& batch, std::int64_t batch_index);
  virtual Optimizers configure_optimizers() = 0;
  // Of a stream an epoch lasts until the longest of the ranks' parts has ended, and a rank whose
  // part is shorter begins it anew: no sample is left out, and all ranks have as many batches.
  virtual DataLoader train_dataloader() = 0;
  // Without one there is no validation.
  virtual std::optional<DataLoader> val_dataloader() { return std::nullopt; }

  virtual void on_fit_start() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_before_optimizer_step(Optimizer& /*optimizer*/) {}
  virtual void on_fit_end() {}

  // From training_step and validation_step (and, for values that are ready, the epoch hooks). A
  // tensor is read at once. Throws Error when no Trainer runs this module.
  void log(const std::string& name, double value, const LogOptions& options = {});
  void log(const std::string& name, const at::Tensor& value, const LogOptions& options = {});

  // What an optimizer wants: the parameters that need a gradient, by name. (torch::nn::Module's
  // named_parameters() hides train::named_parameters() within a class.)
  std::vector<NamedParameter> trained_parameters() const;

  // Throws Error when no Trainer has this module.
  Trainer& trainer() const;

 private:
  friend class Trainer;
  Trainer* trainer_ = nullptr;
  MetricLog* log_ = nullptr;  // of the phase that runs
  std::int64_t samples_ = 1;  // of the batch that runs
};

}  // namespace dtrain::train

#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/api/data_loader.hpp"
#include "trainer/core/metrics.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/late_scalars.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/reduce_lr_on_plateau.hpp"
#include "trainer/train/scheduler.hpp"

namespace dtrain::train {

class Trainer;

// A rate that falls when a metric has stopped getting better: Lightning's dictionary with a
// ReduceLROnPlateau. It goes by the newest value that there is of the metric, rank 0's on all
// ranks; one that is not there is an Error.
struct Plateau {
  ReduceLROnPlateauOptions options = {};
  std::string monitor = "val_loss";
  Scheduler::Per per =
      Scheduler::Per::epoch;   // Lightning's interval: looked at after each of them,
  std::int64_t frequency = 1;  // or each so many
};

// An optimizer, and how its rate moves; of several, each with a name of its own.
struct OptimizerConfig {
  OptimizerConfig(std::string its_name, std::shared_ptr<Optimizer> its,
                  SchedulePtr its_schedule = nullptr, Scheduler::Per its_per = Scheduler::Per::step)
      : name(std::move(its_name)),
        optimizer(std::move(its)),
        schedule(std::move(its_schedule)),
        per(its_per) {}
  OptimizerConfig(std::string its_name, std::shared_ptr<Optimizer> its, Plateau its_plateau)
      : name(std::move(its_name)), optimizer(std::move(its)), plateau(std::move(its_plateau)) {}

  std::string name;
  std::shared_ptr<Optimizer> optimizer;
  SchedulePtr schedule;  // constant if null
  Scheduler::Per per = Scheduler::Per::step;
  std::optional<Plateau> plateau;  // in place of a schedule
};

// What configure_optimizers returns:
//
//     return {optimizer};
//     return {optimizer, schedule, Scheduler::Per::epoch};
//     return {optimizer, Plateau{.monitor = "val_accuracy"}};
//     return {{"generator", g, schedule}, {"discriminator", d}};  // optimized by hand: see Module
class Optimizers {
 public:
  Optimizers(std::shared_ptr<Optimizer> optimizer, SchedulePtr schedule = nullptr,
             Scheduler::Per per = Scheduler::Per::step)
      : all_{{"", std::move(optimizer), std::move(schedule), per}} {}
  Optimizers(std::shared_ptr<Optimizer> optimizer, Plateau plateau)
      : all_{{"", std::move(optimizer), std::move(plateau)}} {}
  Optimizers(std::initializer_list<OptimizerConfig> several) : all_(several) {}

  const std::vector<OptimizerConfig>& all() const { return all_; }

 private:
  std::vector<OptimizerConfig> all_;
};

struct LogOptions {
  // Unset: on_step in training, on_epoch in validation and in the hooks of an epoch, where on_step
  // is an Error.
  std::optional<bool> on_step = std::nullopt;
  std::optional<bool> on_epoch = std::nullopt;  // the mean over the epoch, by the samples
  bool sync_dist = false;                       // over all ranks; else rank 0's own is what is kept
  bool prog_bar = false;
};

// What is logged in an epoch. The Trainer has one for training and one for validation. Tensors are
// read late (late()): when values are asked for, and not in every step.
class MetricLog {
 public:
  explicit MetricLog(bool on_step, bool on_epoch) : on_step_(on_step), on_epoch_(on_epoch) {}
  MetricLog(const MetricLog&) = delete;
  MetricLog& operator=(const MetricLog&) = delete;

  // `value`: a double, or a tensor of one number. Throws Error on other tensors.
  template <typename Value>
  void add(const std::string& name, const Value& value, std::int64_t samples,
           const LogOptions& options);
  // The step's values since the last call. Collective if `flushes`; else they are forgotten.
  Metrics take_step(Context& context, bool flushes);
  // The epoch's means so far. Collective. Ranks may have logged different names, or nothing.
  Metrics means(Context& context);
  Metrics take_epoch(Context& context);                          // those, and begins anew
  const Metrics& progress_bar() const { return progress_bar_; }  // as of the last reading
  LateScalars& late() { return late_; }

  // What is summed up so far, for a checkpoint within an epoch: of this rank.
  nlohmann::json state();
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
  LateScalars late_;
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
  // uses the same parameters each time (else DdpOptions::find_unused_parameters). When optimizing
  // by hand it may be none, at::Tensor().
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

  // Optimizing by hand, as Lightning's automatic_optimization = False: for several optimizers, or
  // several steps of one. training_step then does it all, and what it returns is only reported:
  //
  //     {
  //       const auto only = toggle_optimizer(*optimizers()[1]);
  //       optimizers()[1]->zero_grad();
  //       manual_backward(discriminator_loss);
  //       optimizers()[1]->step();
  //     }
  //
  // A step of the Trainer is one training_step, whatever it does. Schedulers are stepped by hand
  // too; on_before_optimizer_step is not called; clip with clip_gradient_norm. fp16,
  // accumulate_grad_batches, gradient_clip_val and static_graph are Errors. Several backwards, each
  // for a part of the parameters, are right with several ranks: DDP looks at each one's graph
  // (find_unused_parameters is on by itself).
  virtual bool automatic_optimization() const { return true; }
  // As configure_optimizers gave them, in its order, ready for the strategy. Throw Error before.
  const std::vector<std::shared_ptr<Optimizer>>& optimizers() const;
  // Of optimizer `index`: throw Error where it has none.
  Scheduler& lr_scheduler(std::size_t index = 0) const;
  ReduceLROnPlateau& lr_plateau(std::size_t index = 0) const;
  // Gradients of the parameters that the loss was made of, averaged over the ranks. Collective.
  void manual_backward(const at::Tensor& loss);
  // While it lives, only this optimizer's parameters need gradients: a loss that goes through other
  // parts of the module leaves nothing in them, and costs no more than it must. Not nested.
  class ToggledOptimizer {
   public:
    ToggledOptimizer(const Module& module, const Optimizer& optimizer);
    ~ToggledOptimizer();
    ToggledOptimizer(const ToggledOptimizer&) = delete;
    ToggledOptimizer& operator=(const ToggledOptimizer&) = delete;

   private:
    std::vector<at::Tensor> off_;
  };
  [[nodiscard]] ToggledOptimizer toggle_optimizer(const Optimizer& optimizer) const {
    return {*this, optimizer};
  }

  // From training_step, validation_step and the epoch hooks; what on_validation_epoch_end and
  // on_train_epoch_end log is there for callbacks, plateaus and the epoch's checkpoint. A
  // tensor has one number; it is copied where it is, and read when somebody wants to see it, at the
  // latest after log_every_n_steps. Throws Error when no Trainer runs this module.
  void log(const std::string& name, double value, const LogOptions& options = {});
  void log(const std::string& name, const at::Tensor& value, const LogOptions& options = {});

  // What an optimizer wants: the parameters that need a gradient, by name. (torch::nn::Module's
  // named_parameters() hides train::named_parameters() within a class.)
  std::vector<NamedParameter> trained_parameters() const;

  // Throws Error when no Trainer has this module.
  Trainer& trainer() const;

 private:
  friend class Trainer;
  LogOptions log_options(const std::string& name, LogOptions options) const;  // for where it runs

  Trainer* trainer_ = nullptr;
  MetricLog* log_ = nullptr;  // of the phase that runs
  bool in_epoch_hook_ = false;
  std::int64_t samples_ = 1;  // of the batch that runs
};

}  // namespace dtrain::train

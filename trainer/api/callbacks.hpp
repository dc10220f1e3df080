#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/metrics.hpp"
#include "trainer/report/step_times.hpp"
#include "trainer/train/reduce_lr_on_plateau.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train {

class Module;
class Optimizer;
class Trainer;

// Something that looks at a training from outside and may act on it. Every rank has its own, and
// all see the same calls. state() goes into checkpoints, under name(), and must be alike on all.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual std::string name() const = 0;  // unlike that of any other callback of the Trainer

  virtual void on_fit_start(Trainer&, Module&) {}
  virtual void on_train_epoch_start(Trainer&, Module&) {}
  virtual void on_train_batch_end(Trainer&, Module&) {}
  virtual void on_before_optimizer_step(Trainer&, Module&, Optimizer&) {}
  // After each optimizer step; schedules move the rate afterwards.
  virtual void on_step_end(Trainer&, Module&) {}
  virtual void on_validation_start(Trainer&, Module&) {}
  virtual void on_validation_end(Trainer&, Module&) {}
  // In place of it, where SIGTERM came: the next start begins this validation anew.
  virtual void on_validation_broken_off(Trainer&, Module&) {}
  virtual void on_train_epoch_end(Trainer&, Module&) {}
  virtual void on_fit_end(Trainer&, Module&) {}

  // What it adds to the metrics that are reported with a step.
  virtual Metrics step_metrics(Trainer&) { return {}; }
  virtual nlohmann::json state() const { return nullptr; }
  virtual void load_state(const nlohmann::json&) {}
};

// Checkpoints: at the end of every so many epochs, every so many steps, and, with a `monitor`,
// after each validation that has a value of it: the weights that were measured. Each has the means
// (of an epoch, of a validation) that were taken at its very step, and no older ones; the last one,
// of a training that max_steps or stop() ends within an epoch, those of its part. Where they go is
// the Trainer's default_root_dir, or dtrain's storage. Under dtrain the job's `checkpoint:` says
// which are kept; else these options do.
class ModelCheckpoint final : public Callback {
 public:
  struct Options {
    std::int64_t every_n_epochs = 1;       // 0: none for the end of epochs
    std::int64_t every_n_train_steps = 0;  // 0: none between
    std::optional<int> save_top_k;         // by `monitor`, else the newest; all if unset or -1
    // A metric; what has no value of it is the worst. Error at the end of an epoch with a
    // validation, where there is none of that name and steps have been logged (log_every_n_steps).
    std::string monitor;
    Best mode = Best::min;
  };
  ModelCheckpoint() : ModelCheckpoint(Options{}) {}
  // Throws Error where save_top_k is neither -1 nor at least 1.
  explicit ModelCheckpoint(Options options);

  std::string name() const override { return "model_checkpoint"; }
  const Options& options() const { return options_; }

 private:
  Options options_;
};

// Ends the training when a metric has not become better for `patience` validations (or epochs,
// without validation). It says so then, by rank 0's values. One that is no number is never better.
// All ranks stop together.
class EarlyStopping final : public Callback {
 public:
  struct Options {
    std::string monitor = "val_loss";
    Best mode = Best::min;
    double min_delta = 0;
    std::int64_t patience = 3;
  };
  explicit EarlyStopping(Options options) : options_(std::move(options)) {}

  std::string name() const override { return "early_stopping"; }
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;
  std::int64_t waited() const { return waited_; }

 private:
  void look(Trainer& trainer);

  Options options_;
  std::optional<double> best_;
  std::int64_t waited_ = 0;
};

// Adds "lr" (and "momentum") to the metrics of steps; of several optimizers "lr-NAME". They are
// what the step was taken with; of a module that optimizes by hand, what training_step has left.
class LearningRateMonitor final : public Callback {
 public:
  std::string name() const override { return "learning_rate_monitor"; }
  Metrics step_metrics(Trainer& trainer) override;
};

// Adds samples_per_second over all ranks, step_ms, how long steps waited for data, copied and
// computed, and, where both numbers are given, mfu: the part of the machine's peak that was used.
class ThroughputMonitor final : public Callback {
 public:
  struct Options {
    double flops_per_sample = 0;  // forward and backward
    double peak_flops = 0;        // of one rank's device
  };
  ThroughputMonitor() = default;
  explicit ThroughputMonitor(Options options) : options_(options) {}
  std::string name() const override { return "throughput"; }
  Metrics step_metrics(Trainer& trainer) override;

 private:
  Options options_;
};

// Keeps an exponential moving average of the weights, validates with it, and saves it in each
// checkpoint as ema.safetensors. Buffers are the model's. A parameter with several names (tied
// weights) has one average, under all of them.
class EmaWeights final : public Callback {
 public:
  explicit EmaWeights(double decay = 0.999) : decay_(decay) {}
  std::string name() const override { return "ema"; }
  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_step_end(Trainer& trainer, Module& module) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_validation_broken_off(Trainer& trainer, Module& module) override;
  const TensorMap& average() const { return average_; }

 private:
  void swap(Module& module);

  double decay_;
  TensorMap average_;               // by the parameters' names
  std::vector<std::string> names_;  // of each parameter one
};

}  // namespace dtrain::train

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trainer/api/callbacks.hpp"
#include "trainer/api/functions.hpp"
#include "trainer/api/lr_finder.hpp"
#include "trainer/api/module.hpp"

namespace dtrain::train {

// How many batches: a number of them, or a part of all, as Lightning tells the two by int and
// float. 1.0 is all, 1 is one.
class Limit {
 public:
  Limit(double part) : value_(part) {}                   // NOLINT: as in Lightning
  Limit(int batches) : value_(std::int64_t{batches}) {}  // NOLINT
  Limit(std::int64_t batches) : value_(batches) {}       // NOLINT
  // At most `all`; of a part above 0, at least one. Throws Error on negative numbers and parts
  // above 1.
  std::int64_t of(std::int64_t all, const char* name) const;

 private:
  std::variant<double, std::int64_t> value_;
};

// A range of steps whose operations are written to a file that chrome://tracing and Perfetto read;
// of a training that ends within it, the steps that it had.
struct ProfileOptions {
  std::int64_t first_step = 1;
  std::int64_t last_step = 3;
  std::filesystem::path trace;  // rank 0's; other ranks append ".rankN"
};

struct TrainerOptions {
  std::int64_t max_epochs = 1;   // -1: until max_steps
  std::int64_t max_steps = -1;   // optimizer steps; -1: until max_epochs
  std::string precision = "32";  // "bf16", "16": autocast; 16 with a loss scale
  // Gradients of so many batches make one step. The loss of each is divided by the number of
  // batches in its window, so that the step has their mean; the last window of an epoch may be
  // shorter, and is divided by what it has. Clipping, the step, the schedule and checkpoints come
  // at a window's end only: a resume never begins inside of one.
  std::int64_t accumulate_grad_batches = 1;
  std::optional<double> gradient_clip_val;  // of the norm, after unscaling
  std::string strategy = "ddp";             // "zero1", "zero2"; "horovod" and "ring" mean ddp
  Limit val_check_interval = 1.0;           // validate so often within an epoch
  std::int64_t check_val_every_n_epoch = 1;
  Limit limit_train_batches = 1.0;
  Limit limit_val_batches = 1.0;
  bool fast_dev_run = false;  // one batch of each, no checkpoint, no log files
  std::vector<std::shared_ptr<Callback>> callbacks;
  // Where checkpoints go when dtrain does not say; none are written if neither says.
  std::optional<std::filesystem::path> default_root_dir;
  bool enable_checkpointing = true;
  std::int64_t log_every_n_steps = 50;
  bool sync_batchnorm = false;
  bool channels_last = false;
  // The process's, as in train/device_settings.hpp: set them in InitOptions where init() is your
  // own. `deterministic` is DDP's too.
  std::optional<bool> benchmark;
  bool deterministic = false;
  std::optional<std::string> float32_matmul_precision;  // "highest", "high", "medium"
  DdpOptions ddp;
  GradScaler::Options scaler;
  std::optional<std::uint64_t>
      seed;  // set_seed() when fit() begins; the module has its weights by then
  // A loss that is no number ends the training (Session::check_loss); else it is said. The losses
  // of steps are read together: with the next log, progress line, validation, checkpoint or end of
  // an epoch, so within log_every_n_steps; the step that is named is the one that had it. No
  // checkpoint is written of a step whose loss was not looked at.
  bool stop_on_bad_loss = false;
  std::optional<ProfileOptions> profile;
  // Rank 0's metrics and the hyperparameters go there: CsvLogger, one's own, … (report/logger.hpp).
  std::vector<std::shared_ptr<Logger>> loggers;
  std::optional<std::filesystem::path> metrics_file;  // one more: a JsonLinesLogger
  std::optional<std::filesystem::path> tensorboard;   // one more: a TensorBoardLogger
  nlohmann::json hyperparameters = nlohmann::json::object();
  Context::Options context;
};

// Trains a Module: the loop that everyone writes, over the functions of functions.hpp. Calls init()
// if that was not done; then default_root_dir, the log files and `context` of the options hold.
//
//   for each epoch: on_train_epoch_start; for each batch: training_step, backward; at a window's
//   end: unscale, clip, on_before_optimizer_step, step, schedule; validation where
//   val_check_interval says; on_train_epoch_end; checkpoint.
//
// A resume goes on from the newest checkpoint by itself; with as many ranks, metrics and the means
// of an epoch come out as if it had never stopped. SIGTERM on any rank: all finish the same step,
// write a checkpoint, and fit() returns 143; a validation is broken off, and is the first thing
// that the next start does. One fit() for a Trainer; collective. The
// destructor leaves the group if the Trainer has joined it.
class Trainer {
 public:
  explicit Trainer(TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Returns what main() should: 0, or 143 when it was told to go before its end.
  int fit(std::shared_ptr<Module> module);
  // Where the loss falls most with a rising rate, to choose the optimizer's rate by: before fit(),
  // of the same module or with a Trainer of its own. Trains on its data for a while, from where
  // fit() would begin. Afterwards weights, buffers, the optimizer's state and rate, the loss scale
  // and the random generators are as before to the bit; callbacks and loggers have seen nothing.
  // What a module keeps beside its tensors is its own affair. Collective. Throws Error for modules
  // that optimize by hand.
  LrFinderResult lr_find(std::shared_ptr<Module> module, const LrFinderOptions& options = {});
  // The means of what validation_step logs. Of a module that fit() has trained, or of another
  // one: then it is prepared, and what there is of checkpoints is loaded.
  Metrics validate(std::shared_ptr<Module> module);

  std::int64_t global_step() const;  // optimizer steps done
  std::int64_t current_epoch() const;
  // The newest value of everything logged, epoch means among them.
  const Metrics& callback_metrics() const;
  Optimizer& optimizer() const;  // throws Error before fit(), and where there are several
  // As configure_optimizers gave them. Of one the name may be empty.
  const std::vector<std::shared_ptr<Optimizer>>& optimizers() const;
  const std::vector<std::string>& optimizer_names() const;
  StepTimes& times();
  bool validates() const;  // the module has a val_dataloader, and its limit is above 0
  // Any rank may call it, alone: all leave together, after the validation or epoch in which it
  // does, else after the step in which it does (with several ranks, after the next one).
  void stop();
  const TrainerOptions& options() const;

  // Piece by piece, for loops of one's own: prepares once, then trains epochs up to `epochs` in
  // all.
  void prepare(std::shared_ptr<Module> module);
  int run_until(std::int64_t epochs);
  void finish();

 private:
  friend class Module;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtrain::train

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "trainer/api/trainer.hpp"
#include "trainer/report/step_times.hpp"
#include "trainer/train/profiler.hpp"
#include "trainer/train/scheduler.hpp"

namespace dtrain::train {

// A Trainer's inside: trainer.cpp begins and ends it, trainer_loop.cpp is the loop.
struct Trainer::State {
  explicit State(TrainerOptions its) : options(std::move(its)) {}

  // The session keeps the log, and what waits in it refers to this.
  ~State() { train_log.late().forget(); }

  const TrainerOptions options;
  const ModelCheckpoint::Options* checkpoints = nullptr;  // null: none
  ModelCheckpoint::Options default_checkpoints;
  bool made_training = false;  // init() was ours

  std::shared_ptr<Module> module;
  std::shared_ptr<DistributedDataParallel> ddp;
  bool automatic = true;  // Module::automatic_optimization
  // As configure_optimizers gave them; one, where the Trainer optimizes.
  std::vector<std::shared_ptr<Optimizer>> optimizers;
  std::vector<std::string> optimizer_names;
  struct Moving {  // how an optimizer's rate moves; both null: it is constant
    std::shared_ptr<Scheduler> scheduler;
    std::shared_ptr<ReduceLROnPlateau> plateau;
    Plateau how;
  };
  std::vector<Moving> moving;
  std::optional<DataLoader> train_data;
  std::optional<DataLoader> val_data;
  std::int64_t train_batches = 0;  // of an epoch, limited; of a stream kUnknown, if it is not
  std::int64_t val_batches = 0;
  std::int64_t val_every = 0;  // batches; 0: never

  Place place;
  // What checkpoints keep of the loop itself. The session, which keeps it, may outlive the Trainer.
  struct Kept {
    MetricLog train_log{true, false};  // and the losses of steps, in its late values
    Metrics metrics;                   // callback_metrics
    // Which of them are means over an epoch or a validation, and the step that these ended at.
    std::map<std::string, std::int64_t> means;
    bool validation_due = false;  // one was broken off: it comes before the next step
  };
  const std::shared_ptr<Kept> kept = std::make_shared<Kept>();
  MetricLog& train_log = kept->train_log;
  Metrics& metrics = kept->metrics;
  MetricLog val_log{false, true};
  StepTimes times;
  std::optional<Profile> profile;
  bool was_profiled = false;
  std::int64_t profiled_from = 0;
  double window_loss = 0;  // summed up, of the batches that are read: so many
  std::int64_t window_losses = 0;
  std::optional<double> last_loss;  // of the newest step that is read
  bool stops = false;               // on this rank
  bool has_ended = false;           // on all
  bool has_logged = false;          // metrics of a step: there is none before log_every_n_steps
  bool preempted = false;
  std::int64_t checkpointed_at = -1;  // step

  template <typename Call>
  void each(Call call) {
    for (const std::shared_ptr<Callback>& callback : options.callbacks) call(*callback);
  }
  std::int64_t total_steps() const;
  std::int64_t batches_done() const;
  bool is_last_step() const { return options.max_steps >= 0 && place.step >= options.max_steps; }

  void begin(Trainer& trainer, std::shared_ptr<Module> its_module);
  void run_epoch(Trainer& trainer);
  void begin_optimizers();
  // The batches of one step, and its gradients. Its callbacks are called where there is a trainer.
  struct Window {
    std::int64_t batches = 0;
    std::int64_t samples = 0;
  };
  Window run_window(Trainer* trainer, DataLoader::Pass& pass, std::deque<Batch>& ready,
                    std::int64_t index, std::int64_t window);
  // The loss, detached; none when a module that optimizes by hand gives none.
  at::Tensor train_batch(const Batch& batch, std::int64_t index, std::int64_t in_window,
                         std::int64_t window);
  bool take_step(Trainer* trainer);
  void look_for_plateaus(Scheduler::Per per, std::int64_t done);
  void end_window(Trainer& trainer, std::int64_t batches);
  LrFinderResult find_lr(const LrFinderOptions& its);
  void keep_loop();
  // The hooks of an epoch's begin and end, the module's and the callbacks': log() in them is for
  // the whole epoch.
  template <typename Hooks>
  void call_epoch_hooks(MetricLog& log, Hooks hooks) {
    struct In {
      bool& hook;
      ~In() { hook = false; }
    } const in{module->in_epoch_hook_ = true};
    module->log_ = &log;
    module->samples_ = 1;
    hooks();
  }
  // The means of what was logged since the last call, which go into the metrics. Collective.
  void take_means(MetricLog& log);
  // The metrics without means that were taken at another step: weights that have changed since are
  // not what was measured.
  Metrics metrics_of_step() const;
  // These, and the means that were taken at this step, alone.
  void report_means(Metrics its = {});
  // False if it was broken off, on all ranks, because one of them was told to go and it may leave.
  bool validate(Trainer& trainer, bool may_leave);
  void leave_for_validation();
  bool checkpoint_due() const;  // by every_n_train_steps, after this step
  // Whether rank 0, whose metrics checkpoints have, has ModelCheckpoint's `monitor` among these;
  // false where there is none. Collective.
  bool has_monitored(const Metrics& its) const;
  // At the end of an epoch with a validation: throws Error where nothing has been logged by that
  // name, once a step's metrics have been taken too. Collective.
  void check_monitored() const;
  // With the metrics of this step; of a name that both have, with `means`.
  void checkpoint(const Place& at, Metrics means = {});
  bool agree_to_stop();
  void begin_profile();
  void end_profile();
};

}  // namespace dtrain::train

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "trainer/api/trainer.hpp"
#include "trainer/report/step_times.hpp"
#include "trainer/train/profiler.hpp"
#include "trainer/train/scheduler.hpp"

namespace dtrain::train {

// A Trainer's inside: trainer.cpp begins and ends it, trainer_loop.cpp is the loop.
struct Trainer::State {
  explicit State(TrainerOptions its) : options(std::move(its)) {}

  const TrainerOptions options;
  const ModelCheckpoint::Options* checkpoints = nullptr;  // null: none
  ModelCheckpoint::Options default_checkpoints;
  bool made_training = false;  // init() was ours

  std::shared_ptr<Module> module;
  std::shared_ptr<DistributedDataParallel> ddp;
  std::shared_ptr<Optimizer> optimizer;
  std::shared_ptr<Scheduler> scheduler;  // null: constant
  std::optional<DataLoader> train_data;
  std::optional<DataLoader> val_data;
  std::int64_t train_batches = 0;  // of an epoch, limited; of a stream kUnknown, if it is not
  std::int64_t val_batches = 0;
  std::int64_t val_every = 0;  // batches; 0: never

  Place place;
  MetricLog train_log{true, false};
  MetricLog val_log{false, true};
  Metrics metrics;  // callback_metrics
  StepTimes times;
  std::optional<Profile> profile;
  bool was_profiled = false;
  std::int64_t profiled_from = 0;
  bool stops = false;      // on this rank
  bool has_ended = false;  // on all
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
  std::int64_t fill_window(DataLoader::Pass& pass, std::deque<Batch>& ready, std::int64_t window);
  double train_batch(Trainer& trainer, const Batch& batch, std::int64_t index,
                     std::int64_t in_window, std::int64_t window);
  void end_window(Trainer& trainer, double loss);
  void validate(Trainer& trainer);
  void checkpoint(const Place& at);
  bool agree_to_stop();
  void begin_profile();
  void end_profile();
};

}  // namespace dtrain::train

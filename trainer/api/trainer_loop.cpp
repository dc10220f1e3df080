#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/api/fill_window.hpp"
#include "trainer/api/trainer_state.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/module_modes.hpp"

namespace dtrain::train {

// Before a step: once, and from the middle of the range on where a resume begins there.
void Trainer::State::begin_profile() {
  if (!options.profile || was_profiled) return;
  const std::int64_t next = place.step + 1;
  if (next < options.profile->first_step || next > options.profile->last_step) return;
  was_profiled = true;
  profiled_from = next;
  profile.emplace();
}

// After the last step of the range, or of the training.
void Trainer::State::end_profile() {
  if (!profile) return;
  std::filesystem::path path = options.profile->trace;
  if (!context().is_first()) path += ".rank" + std::to_string(context().rank());
  profile->save(path);
  profile.reset();
  session().say("profile of steps " + std::to_string(profiled_from) + " to " +
                std::to_string(place.step) + " in " + path.string());
}

Trainer::State::Window Trainer::State::run_window(Trainer* trainer, DataLoader::Pass& pass,
                                                  std::deque<Batch>& ready, std::int64_t index,
                                                  std::int64_t window) {
  using Part = StepTimes::Part;
  Window its;
  for (; its.batches < window; ++its.batches) {
    context().set_phase("data");
    std::optional<Batch> batch;
    if (ready.empty()) {
      batch = pass.next();
    } else {
      batch = std::move(ready.front());
      ready.pop_front();
    }
    if (!batch) throw Error("trainer: the data ended before its epoch");
    times.lap(Part::wait);
    const Batch here = to_device(std::move(*batch), context().device());
    times.lap(Part::copy);
    context().set_phase("compute");
    const at::Tensor batch_loss = train_batch(here, index + its.batches, its.batches, window);
    if (batch_loss.defined()) {
      train_log.late().add(batch_loss, [this](double value) {
        window_loss += value;
        ++window_losses;
      });
    }
    if (trainer != nullptr) {
      each([&](Callback& callback) { callback.on_train_batch_end(*trainer, *module); });
    }
    its.samples += here.size();
    times.lap(Part::compute);
  }
  return its;
}

// One batch's part of a window's gradients.
at::Tensor Trainer::State::train_batch(const Batch& batch, std::int64_t index,
                                       std::int64_t in_window, std::int64_t window) {
  std::optional<DistributedDataParallel::NoSync> silent;
  if (in_window + 1 < window) silent.emplace(*ddp);
  module->samples_ = batch.size();
  ddp->prepare_forward();
  at::Tensor loss;
  {
    const std::unique_ptr<Autocast> in_precision = autocast();
    // Weights that change in the midst of it must not be taken from autocast's cache.
    const bool caches = at::autocast::is_autocast_cache_enabled();
    if (!automatic) at::autocast::set_autocast_cache_enabled(false);
    loss = module->training_step(batch, index);
    at::autocast::set_autocast_cache_enabled(caches);
  }
  if (!automatic && !loss.defined()) return {};
  if (!loss.defined() || loss.numel() != 1) {
    throw Error("trainer: training_step must return the loss, one number");
  }
  if (automatic) {
    const at::Tensor shared = window > 1 ? loss / static_cast<double>(window) : loss;
    backward(ddp->prepare_backward({shared})[0]);
  }
  return loss.detach();
}

void Trainer::State::end_window(Trainer& trainer, std::int64_t batches) {
  const bool taken = !automatic || take_step(&trainer);
  ++place.step;
  context().set_step(place.step);
  train_log.late().add(0.0, [this, step = place.step, batches](double) {
    last_loss.reset();
    if (window_losses == 0) return;
    last_loss = window_loss / static_cast<double>(batches);
    window_loss = 0;
    window_losses = 0;
    session().check_loss(step, *last_loss);
  });
  each([&](Callback& callback) { callback.on_step_end(trainer, *module); });
  if (profile && place.step >= options.profile->last_step) end_profile();

  const bool logs = place.step % options.log_every_n_steps == 0;
  Metrics step_metrics = train_log.take_step(context(), logs);
  if (logs) {
    has_logged = true;
    if (last_loss) step_metrics.try_emplace("loss", *last_loss);
    if (options.gradient_clip_val) step_metrics["grad_norm"] = metrics.at("grad_norm");
    each([&](Callback& callback) { step_metrics.merge(callback.step_metrics(trainer)); });
    for (const auto& [name, value] : step_metrics) {
      metrics[name] = value;
      kept->means.erase(name);  // a step's own now
    }
    session().report(place.step, step_metrics, place.epoch);
  }
  // Behind the metrics: a step's have the rate that it was taken with.
  if (automatic && taken && moving[0].scheduler) moving[0].scheduler->after_step();
  if (automatic) look_for_plateaus(Scheduler::Per::step, place.step);
  Progress progress{
      .step = place.step, .total = {}, .epoch = place.epoch, .message = "", .metrics = {}};
  const std::int64_t total = total_steps();
  if (total != std::numeric_limits<std::int64_t>::max()) progress.total = total;
  if (session().progress_due(place.step, progress.total)) {
    train_log.late().read();
    progress.metrics = train_log.progress_bar();
    if (last_loss) progress.metrics.try_emplace("loss", *last_loss);
  }
  session().progress(progress);
}

bool Trainer::State::agree_to_stop() {
  // Only where a callback may have said so, or a signal: one small collective each.
  if (context().all_reduce_sum(stops ? 1.0 : 0.0) > 0) has_ended = true;
  return has_ended;
}

bool Trainer::State::checkpoint_due() const {
  return checkpoints != nullptr && checkpoints->every_n_train_steps > 0 && place.step > 0 &&
         place.step % checkpoints->every_n_train_steps == 0;
}

bool Trainer::State::has_monitored(const Metrics& its) const {
  if (checkpoints == nullptr || checkpoints->monitor.empty()) return false;
  return broadcast(nlohmann::json(its.contains(checkpoints->monitor))).get<bool>();
}

void Trainer::State::check_monitored() const {
  if (checkpoints == nullptr || checkpoints->monitor.empty()) return;
  if (!has_logged || has_monitored(metrics)) return;
  throw Error("ModelCheckpoint: there is no metric '" + checkpoints->monitor +
              "' to keep the best by; there are: " + names_of(metrics));
}

void Trainer::State::checkpoint(const Place& at, Metrics means) {
  train_log.late().read();  // a loss that ends the training does so before it is kept
  if (checkpoints == nullptr) return;
  means.merge(metrics_of_step());
  report(means, at);
  checkpointed_at = place.step;
}

void Trainer::State::take_means(MetricLog& log) {
  for (const auto& [name, value] : log.take_epoch(context())) {
    metrics[name] = value;
    kept->means[name] = place.step;
  }
}

Metrics Trainer::State::metrics_of_step() const {
  Metrics its = metrics;
  for (const auto& [name, step] : kept->means) {
    if (step != place.step) its.erase(name);
  }
  return its;
}

void Trainer::State::report_means(Metrics its) {
  for (const auto& [name, step] : kept->means) {
    const auto found = metrics.find(name);  // the steps are rank 0's, the metrics each rank's own
    if (step == place.step && found != metrics.end()) its.insert(*found);
  }
  if (!its.empty()) session().report(place.step, its, place.epoch);
}

bool Trainer::State::validate(Trainer& trainer, bool may_leave) {
  const InPhase phase(context(), "validation");
  train_log.late().read();
  const ModuleModes modes(*module);
  const at::Tensor generators = generator_state(context().device());
  bool told = false;
  if (options.ddp.broadcast_buffers) ddp->sync_buffers();
  module->eval();
  call_epoch_hooks(val_log, [&] {
    module->on_validation_epoch_start();
    each([&](Callback& callback) { callback.on_validation_start(trainer, *module); });
  });
  {
    const c10::NoGradGuard no_grad;
    const std::unique_ptr<Autocast> in_precision = autocast();
    if (val_data->batches() > 0) {
      DataLoader::Pass pass = val_data->pass(0);
      for (std::int64_t index = 0; index < val_batches; ++index) {
        if ((told = may_leave && session().told_to_go())) break;
        std::optional<Batch> batch = pass.next();
        if (!batch) break;
        module->samples_ = batch->size();
        module->validation_step(to_device(std::move(*batch), context().device()), index);
        val_log.take_step(context(), false);
      }
    }
  }
  // Ranks have different numbers of batches, so that they agree here only.
  if (context().all_reduce_sum(told ? 1.0 : 0.0) > 0) {
    val_log.take_epoch(context());
    each([&](Callback& callback) { callback.on_validation_broken_off(trainer, *module); });
    set_generator_state(generators, context().device());
    modes.restore(*module);
    module->log_ = &train_log;
    return false;
  }
  take_means(val_log);
  call_epoch_hooks(val_log, [&] { module->on_validation_epoch_end(); });
  take_means(val_log);
  call_epoch_hooks(val_log, [&] {
    each([&](Callback& callback) { callback.on_validation_end(trainer, *module); });
  });
  take_means(val_log);
  module->log_ = &train_log;
  modes.restore(*module);
  agree_to_stop();
  return true;
}

// A validation was broken off: the next start begins with it.
void Trainer::State::leave_for_validation() {
  preempted = true;
  has_ended = true;
  kept->validation_due = true;
  checkpoint(place);
  module->log_ = nullptr;
}

void Trainer::State::run_epoch(Trainer& trainer) {
  using Part = StepTimes::Part;
  const std::int64_t began_at = place.position;
  std::int64_t index = batches_done();
  const bool begins = index == 0;
  if (begins) {
    call_epoch_hooks(train_log, [&] {
      module->on_train_epoch_start();
      each([&](Callback& callback) { callback.on_train_epoch_start(trainer, *module); });
    });
  }
  module->log_ = &train_log;
  const bool validates_now =
      val_every > 0 && val_batches > 0 && (place.epoch + 1) % options.check_val_every_n_epoch == 0;
  std::int64_t validated_at = -1;
  bool any = false;
  DataLoader::Pass pass = train_data->pass(place.epoch, began_at);
  // An epoch that another number of ranks began, or other batches, may have one batch more than a
  // whole one of these: where it is not limited it ends with its data.
  const bool is_limited = train_data->is_stream() || train_batches < train_data->batches();
  const std::int64_t end = is_limited ? train_batches : index + pass.batches();
  const bool validates_at_end = val_every == train_batches;
  const std::int64_t validates_every = validates_at_end ? end : val_every;
  bool stream_has_ended = false;
  if (std::exchange(kept->validation_due, false) && trainer.validates()) {
    if (!validate(trainer, /*may_leave=*/true)) return leave_for_validation();
    validated_at = index;
    if (index < end) report_means();  // its checkpoint was before it
  }
  times.begin();
  while (index < end && !has_ended && !is_last_step()) {
    // A window: the last one of an epoch may be shorter.
    std::int64_t window = std::min(options.accumulate_grad_batches, end - index);
    std::deque<Batch> ready;
    if (train_data->is_stream()) {
      context().set_phase("data");
      window = fill_window(pass, ready, window, context());
      stream_has_ended = window == 0;
      if (stream_has_ended) break;
    }
    begin_profile();
    const Window done = run_window(&trainer, pass, ready, index, window);
    end_window(trainer, done.batches);
    times.lap(Part::compute);
    times.step(done.samples);
    any = true;
    index += done.batches;
    place.position = pass.position();

    if (validates_now && index / validates_every > (index - done.batches) / validates_every) {
      if (!validate(trainer, /*may_leave=*/true)) return leave_for_validation();
      validated_at = index;
    }
    if (session().preempted()) {
      preempted = true;
      has_ended = true;
    }
    if (session().stop_agreed()) has_ended = true;
    // Within an epoch, where neither its end nor the training's tells of this step.
    if (index < end && (preempted || (!has_ended && !is_last_step()))) {
      const bool is_validated = validated_at == index;
      const bool is_scored = is_validated && has_monitored(metrics_of_step());
      if (checkpoints != nullptr && (preempted || checkpoint_due() || is_scored)) {
        checkpoint(place);
      } else if (is_validated) {
        report_means();
      }
    }
    if (preempted && index < end) {
      module->log_ = nullptr;
      return;
    }
    times.begin();
  }
  context().set_phase("");
  const bool whole = stream_has_ended || index >= end;
  // Where the end was not known before it came, or a resume found nothing left.
  if (validates_now && whole && validates_at_end && validated_at != index) {
    if (!validate(trainer, /*may_leave=*/true)) return leave_for_validation();
    validated_at = index;
  }
  if (train_data->skipped()) {
    metrics["skipped_samples"] =
        all_reduce_sum(static_cast<double>(train_data->skipped()->count()));
  }
  // A training that max_steps or stop() ends within an epoch tells the means so far. Its checkpoint
  // has the sums too, which are taken only behind it: a resume has the means of the whole epoch.
  if (!whole && any) {
    Metrics so_far = train_log.means(context());
    if (checkpoints != nullptr) {
      checkpoint(place, std::move(so_far));
    } else {
      report_means(std::move(so_far));
    }
  }
  if (any || begins || whole) take_means(train_log);
  if (whole) {
    call_epoch_hooks(train_log, [&] { module->on_train_epoch_end(); });
    take_means(train_log);
    if (automatic) {
      if (moving[0].scheduler) moving[0].scheduler->after_epoch();
      look_for_plateaus(Scheduler::Per::epoch, place.epoch + 1);
    }
    call_epoch_hooks(train_log, [&] {
      each([&](Callback& callback) { callback.on_train_epoch_end(trainer, *module); });
    });
    take_means(train_log);
    if (validated_at >= 0) check_monitored();
    agree_to_stop();
  }
  module->log_ = nullptr;
  const Place next = whole ? Place{place.step, place.epoch + 1, 0} : place;
  const bool by_epoch = checkpoints != nullptr && checkpoints->every_n_epochs > 0 &&
                        (place.epoch + 1) % checkpoints->every_n_epochs == 0;
  // The last step's own waited for the epoch's end, where a resume has nothing of it to do again.
  const bool by_step = checkpoint_due() && checkpointed_at != place.step;
  const bool by_score = whole && validated_at == index && checkpointed_at != place.step &&
                        has_monitored(metrics_of_step());
  if (whole && (by_epoch || by_step || by_score || preempted)) {
    checkpoint(next);
  } else if (whole && !metrics.empty()) {
    session().report(place.step, metrics_of_step(), place.epoch);
  }
  place = next;
}

}  // namespace dtrain::train

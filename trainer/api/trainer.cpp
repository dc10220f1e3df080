#include "trainer/api/trainer.hpp"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <limits>

#include "trainer/core/error.hpp"
#include "trainer/report/step_times.hpp"
#include "trainer/train/profiler.hpp"
#include "trainer/train/scheduler.hpp"

namespace dtrain::train {
namespace {

TrainerOptions checked(TrainerOptions o) {
  if (o.accumulate_grad_batches < 1) {
    throw Error("trainer: accumulate_grad_batches must be at least 1");
  }
  if (o.max_epochs < 0 && o.max_steps < 0) throw Error("trainer: neither max_epochs nor max_steps");
  if (o.gradient_clip_val && !(*o.gradient_clip_val > 0)) {
    throw Error("trainer: gradient_clip_val must be above 0");
  }
  if (o.log_every_n_steps < 1) throw Error("trainer: log_every_n_steps must be at least 1");
  if (o.check_val_every_n_epoch < 1) {
    throw Error("trainer: check_val_every_n_epoch must be at least 1");
  }
  precision_of(o.precision);
  strategy_of(o.strategy);
  if (o.fast_dev_run) {
    o.max_epochs = 1;
    o.max_steps = 1;
    o.accumulate_grad_batches = 1;
    o.limit_train_batches = 1;
    o.limit_val_batches = 1;
    o.val_check_interval = 1.0;
    o.check_val_every_n_epoch = 1;
    o.log_every_n_steps = 1;
    o.enable_checkpointing = false;
    o.metrics_file.reset();
    o.tensorboard.reset();
  }
  o.ddp.deterministic = o.ddp.deterministic || o.deterministic;
  return o;
}

}  // namespace

std::int64_t Limit::of(std::int64_t all, const char* name) const {
  if (const auto* batches = std::get_if<std::int64_t>(&value_)) {
    if (*batches < 0) throw Error(std::string("trainer: ") + name + " must not be negative");
    return std::min(*batches, all);
  }
  const double part = std::get<double>(value_);
  if (!(part >= 0 && part <= 1)) {
    throw Error(std::string("trainer: ") + name +
                " is a part of all batches from 0.0 to 1.0, or a whole number of them");
  }
  if (part == 0 || all == 0) return 0;
  if (all == DataLoader::kUnknown) {
    if (part == 1) return all;
    throw Error(std::string("trainer: ") + name +
                " must be 1.0, 0.0 or a number of batches: the length of a stream is not known");
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(part * static_cast<double>(all)));
}

struct Trainer::State {
  explicit State(TrainerOptions o) : options(checked(std::move(o))) {}

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

Trainer::Trainer(TrainerOptions options) : state_(std::make_unique<State>(std::move(options))) {
  State& s = *state_;
  std::string names;
  for (const std::shared_ptr<Callback>& callback : s.options.callbacks) {
    if (!callback) throw Error("trainer: a callback is null");
    if (const auto* own = dynamic_cast<const ModelCheckpoint*>(callback.get())) {
      s.checkpoints = &own->options();
    }
    const std::string name = "\n" + callback->name() + "\n";
    if (names.find(name) != std::string::npos) {
      throw Error("trainer: two callbacks have the name '" + callback->name() + "'");
    }
    names += name;
  }
  if (s.checkpoints == nullptr) s.checkpoints = &s.default_checkpoints;
  if (!s.options.enable_checkpointing) s.checkpoints = nullptr;
}

Trainer::~Trainer() {
  if (state_->module) {
    state_->module->trainer_ = nullptr;
    state_->module->log_ = nullptr;
  }
  if (!state_->made_training) return;
  state_.reset();  // before what it refers to
  try {
    shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: %s\n", error.what());
  }
}

// Steps of the whole training, for the progress line; none if it has no end of its own.
std::int64_t Trainer::State::total_steps() const {
  const std::int64_t window = options.accumulate_grad_batches;
  const std::int64_t per_epoch =
      train_batches / window + static_cast<std::int64_t>(train_batches % window != 0);
  std::int64_t steps = options.max_epochs < 0 || train_data->is_stream()
                           ? std::numeric_limits<std::int64_t>::max()
                           : options.max_epochs * per_epoch;
  if (options.max_steps >= 0) steps = std::min(steps, options.max_steps);
  return steps;
}

std::int64_t Trainer::State::batches_done() const {
  const std::int64_t of_all = train_data->options().batch_size * train_data->ranks();
  return (place.position + of_all - 1) / of_all;
}

void Trainer::State::begin(Trainer& trainer, std::shared_ptr<Module> its_module) {
  if (module == its_module) return;
  if (module) throw Error("trainer: it has a module already; make a Trainer for each");
  if (!is_initialized()) {
    InitOptions init_options;
    init_options.context = options.context;
    Session::Options& session_options = init_options.session;
    session_options.storage = options.default_root_dir;
    if (checkpoints != nullptr) {
      session_options.retention = {.num_to_keep = checkpoints->save_top_k,
                                   .score_attribute = checkpoints->monitor,
                                   .higher_is_better = checkpoints->mode == Best::max};
    }
    session_options.metrics_file = options.metrics_file;
    session_options.tensorboard = options.tensorboard;
    session_options.hyperparameters = options.hyperparameters;
    session_options.stop_on_bad_loss = options.stop_on_bad_loss;
    init(std::move(init_options));
    made_training = true;
  }
  if (options.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
  if (options.seed) set_seed(*options.seed);
  if (!session().can_checkpoint()) checkpoints = nullptr;
  if (stops) session().request_stop();

  module = std::move(its_module);
  module->trainer_ = &trainer;
  ddp = prepare_module(module, {.ddp = options.ddp,
                                .sync_batch_norm = options.sync_batchnorm,
                                .channels_last = options.channels_last,
                                .precision = precision_of(options.precision),
                                .scaler = options.scaler});
  Optimizers configured = module->configure_optimizers();
  if (!configured.optimizer) throw Error("trainer: configure_optimizers gave no optimizer");
  optimizer = prepare_optimizer(configured.optimizer, strategy_of(options.strategy));
  if (configured.schedule) {
    scheduler = std::make_shared<Scheduler>(*optimizer, configured.schedule, configured.per);
    // The session may outlive this Trainer, so that it holds on to what it keeps.
    session().keep(
        "scheduler",
        {.save = [it = scheduler, of = optimizer] { return it->state(); },
         .load = [it = scheduler, of = optimizer](const auto& state) { it->load_state(state); },
         .alike = true});
  }

  train_data = prepare_data_loader(module->train_dataloader());
  train_batches = options.limit_train_batches.of(train_data->batches(), "limit_train_batches");
  if (std::optional<DataLoader> data = module->val_dataloader()) {
    val_data = prepare_data_loader(*data, /*evaluates=*/true);
    // Parts of what the rank with most has, so that all ranks validate or none.
    const std::int64_t of_all = val_data->options().batch_size * val_data->ranks();
    const std::int64_t most =
        val_data->is_stream() ? DataLoader::kUnknown : (val_data->samples() + of_all - 1) / of_all;
    val_batches = options.limit_val_batches.of(most, "limit_val_batches");
    val_every = options.val_check_interval.of(train_batches, "val_check_interval");
  }

  module->log_ = nullptr;
  module->on_fit_start();
  each([&](Callback& callback) { callback.on_fit_start(trainer, *module); });
  for (const std::shared_ptr<Callback>& callback : options.callbacks) {
    if (callback->state().is_null()) continue;
    session().keep("callback/" + callback->name(),
                   {.save = [callback] { return callback->state(); },
                    .load = [callback](const auto& it) { callback->load_state(it); },
                    .alike = true});
  }
  place = get_checkpoint().value_or(Place{});
  if (place.step > 0) checkpointed_at = place.step;
}

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

// Of a stream: up to `window` batches, the same number on every rank, of which at least one rank
// has not had its batches in this epoch. The others begin their parts anew. None at the epoch's
// end.
std::int64_t Trainer::State::fill_window(DataLoader::Pass& pass, std::deque<Batch>& ready,
                                         std::int64_t window) {
  const auto wanted = [&](std::int64_t count) {
    return static_cast<std::int64_t>(ready.size()) < count;
  };
  while (!pass.has_ended() && wanted(window)) {
    if (std::optional<Batch> batch = pass.next()) ready.push_back(std::move(*batch));
  }
  std::vector<double> fresh(static_cast<std::size_t>(context().world_size()));
  fresh[static_cast<std::size_t>(context().rank())] =
      pass.is_empty() ? -1.0 : static_cast<double>(ready.size());
  fresh = context().all_reduce_sum(std::move(fresh));
  for (std::size_t rank = 0; rank < fresh.size(); ++rank) {
    if (fresh[rank] >= 0) continue;
    throw Error("trainer: rank " + std::to_string(rank) +
                "'s part of the training stream has no batch");
  }
  const auto most = static_cast<std::int64_t>(*std::max_element(fresh.begin(), fresh.end()));
  while (wanted(most)) {
    if (std::optional<Batch> batch = pass.next()) {
      ready.push_back(std::move(*batch));
    } else {
      pass.again();
    }
  }
  return most;
}

// One batch's part of a window's gradients. Returns its loss.
double Trainer::State::train_batch(Trainer& trainer, const Batch& batch, std::int64_t index,
                                   std::int64_t in_window, std::int64_t window) {
  std::optional<DistributedDataParallel::NoSync> silent;
  if (in_window + 1 < window) silent.emplace(*ddp);
  module->samples_ = batch.size();
  ddp->prepare_forward();
  at::Tensor loss;
  {
    const std::unique_ptr<Autocast> in_precision = autocast();
    loss = module->training_step(batch, index);
  }
  if (!loss.defined() || loss.numel() != 1) {
    throw Error("trainer: training_step must return the loss, one number");
  }
  const at::Tensor shared = window > 1 ? loss / static_cast<double>(window) : loss;
  backward(ddp->prepare_backward({shared})[0]);
  const double value = loss.item<double>();
  each([&](Callback& callback) { callback.on_train_batch_end(trainer, *module); });
  return value;
}

void Trainer::State::end_window(Trainer& trainer, double loss) {
  if (options.gradient_clip_val) {
    metrics["grad_norm"] = clip_gradients(*options.gradient_clip_val);
  } else {
    unscale_gradients();
  }
  module->on_before_optimizer_step(*optimizer);
  each(
      [&](Callback& callback) { callback.on_before_optimizer_step(trainer, *module, *optimizer); });
  const bool taken = optimizer_step();
  if (scheduler && taken) scheduler->after_step();
  ++place.step;
  context().set_step(place.step);
  session().check_loss(place.step, loss);
  each([&](Callback& callback) { callback.on_step_end(trainer, *module); });
  if (profile && place.step >= options.profile->last_step) end_profile();

  const bool logs = place.step % options.log_every_n_steps == 0;
  Metrics step_metrics = train_log.take_step(context(), logs);
  if (logs) {
    step_metrics.try_emplace("loss", loss);
    if (options.gradient_clip_val) step_metrics["grad_norm"] = metrics.at("grad_norm");
    each([&](Callback& callback) { step_metrics.merge(callback.step_metrics(trainer)); });
    for (const auto& [name, value] : step_metrics) metrics[name] = value;
    report(place.step, step_metrics);
  }
  Progress progress{.step = place.step,
                    .total = {},
                    .epoch = place.epoch,
                    .message = "",
                    .metrics = train_log.progress_bar()};
  progress.metrics.try_emplace("loss", loss);
  const std::int64_t total = total_steps();
  if (total != std::numeric_limits<std::int64_t>::max()) progress.total = total;
  session().progress(progress);
}

bool Trainer::State::agree_to_stop() {
  // Only where a callback may have said so, or a signal: one small collective each.
  if (context().all_reduce_sum(stops ? 1.0 : 0.0) > 0) has_ended = true;
  return has_ended;
}

void Trainer::State::checkpoint(const Place& at) {
  if (checkpoints == nullptr) return;
  report(metrics, at);
  checkpointed_at = place.step;
}

void Trainer::State::validate(Trainer& trainer) {
  const bool was_training = module->is_training();
  ddp->sync_buffers();
  module->eval();
  module->on_validation_epoch_start();
  each([&](Callback& callback) { callback.on_validation_start(trainer, *module); });
  module->log_ = &val_log;
  {
    const c10::NoGradGuard no_grad;
    const std::unique_ptr<Autocast> in_precision = autocast();
    if (val_data->batches() > 0) {
      DataLoader::Pass pass = val_data->pass(0);
      for (std::int64_t index = 0; index < val_batches; ++index) {
        std::optional<Batch> batch = pass.next();
        if (!batch) break;
        module->samples_ = batch->size();
        module->validation_step(to_device(std::move(*batch), context().device()), index);
        val_log.take_step(context(), false);
      }
    }
  }
  for (const auto& [name, value] : val_log.take_epoch(context())) metrics[name] = value;
  module->on_validation_epoch_end();
  each([&](Callback& callback) { callback.on_validation_end(trainer, *module); });
  module->log_ = &train_log;
  if (was_training) module->train();
  agree_to_stop();
}

void Trainer::State::run_epoch(Trainer& trainer) {
  using Part = StepTimes::Part;
  const std::int64_t began_at = place.position;
  std::int64_t index = batches_done();
  const bool begins = index == 0;
  module->train();
  module->log_ = &train_log;
  if (begins) {
    module->on_train_epoch_start();
    each([&](Callback& callback) { callback.on_train_epoch_start(trainer, *module); });
  }
  const bool validates_now =
      val_every > 0 && val_batches > 0 && (place.epoch + 1) % options.check_val_every_n_epoch == 0;
  std::int64_t validated_at = -1;
  bool any = false;
  DataLoader::Pass pass = train_data->pass(place.epoch, began_at);
  std::int64_t taken = 0;
  const std::int64_t first = index;
  bool stream_has_ended = false;
  times.begin();
  while (index < train_batches && !has_ended && !is_last_step()) {
    // A window: the last one of an epoch may be shorter.
    std::int64_t window = std::min(options.accumulate_grad_batches, train_batches - index);
    std::deque<Batch> ready;
    if (train_data->is_stream()) {
      window = fill_window(pass, ready, window);
      stream_has_ended = window == 0;
      if (stream_has_ended) break;
    }
    double loss = 0;
    begin_profile();
    std::int64_t done = 0;
    std::int64_t samples = 0;
    for (; done < window; ++done) {
      std::optional<Batch> batch;
      if (ready.empty()) {
        batch = pass.next();
      } else {
        batch = std::move(ready.front());
        ready.pop_front();
      }
      if (!batch) break;
      times.lap(Part::wait);
      const Batch here = to_device(std::move(*batch), context().device());
      times.lap(Part::copy);
      loss += train_batch(trainer, here, index + done, done, window);
      samples += here.size();
      times.lap(Part::compute);
    }
    if (done < window) throw Error("trainer: the data ended before its epoch");
    end_window(trainer, loss / static_cast<double>(window));
    times.lap(Part::compute);
    times.step(samples);
    any = true;
    index += done;
    taken += samples;
    place.position = pass.position_after(taken, index - first);

    if (validates_now && index / val_every > (index - done) / val_every) {
      validate(trainer);
      validated_at = index;
    }
    if (session().preempted()) {
      preempted = true;
      has_ended = true;
      if (index < train_batches) {
        checkpoint(place);
        module->log_ = nullptr;
        return;
      }
    }
    if (checkpoints != nullptr && checkpoints->every_n_train_steps > 0 &&
        place.step % checkpoints->every_n_train_steps == 0 && index < train_batches) {
      checkpoint(place);
    }
    if (session().stop_agreed()) has_ended = true;
    times.begin();
  }
  const bool whole = stream_has_ended || index >= train_batches;
  // Where the end was not known before it came.
  if (validates_now && stream_has_ended && val_every == train_batches) {
    validate(trainer);
    validated_at = index;
  }
  if (any || begins) {
    for (const auto& [name, value] : train_log.take_epoch(context())) metrics[name] = value;
  }
  if (whole) {
    if (scheduler) scheduler->after_epoch();
    module->on_train_epoch_end();
    each([&](Callback& callback) { callback.on_train_epoch_end(trainer, *module); });
    agree_to_stop();
  }
  module->log_ = nullptr;
  const Place next = whole ? Place{place.step, place.epoch + 1, 0} : place;
  const bool by_epoch = checkpoints != nullptr && checkpoints->every_n_epochs > 0 &&
                        (place.epoch + 1) % checkpoints->every_n_epochs == 0;
  if ((whole && by_epoch) || preempted) {
    checkpoint(next);
  } else if (!metrics.empty() && (whole || validated_at >= 0)) {
    report(place.step, metrics);
  }
  place = next;
}

void Trainer::prepare(std::shared_ptr<Module> module) {
  state_->begin(*this, std::move(module));
}

int Trainer::run_until(std::int64_t epochs) {
  State& s = *state_;
  while (!s.has_ended && !s.is_last_step() && (epochs < 0 || s.place.epoch < epochs)) {
    s.run_epoch(*this);
  }
  return s.preempted ? kExitPreempted : 0;
}

void Trainer::finish() {
  State& s = *state_;
  s.end_profile();
  if (s.preempted) session().say("told to go, after step " + std::to_string(s.place.step));
  s.module->on_fit_end();
  s.each([&](Callback& callback) { callback.on_fit_end(*this, *s.module); });
  session().finish();
}

int Trainer::fit(std::shared_ptr<Module> module) {
  State& s = *state_;
  prepare(std::move(module));
  const int code = run_until(s.options.max_epochs);
  // A training that max_steps or stop() has ended within an epoch.
  if (!s.preempted && s.checkpoints != nullptr && s.checkpointed_at != s.place.step &&
      s.place.step > 0) {
    s.checkpoint(s.place);
  }
  finish();
  return code;
}

Metrics Trainer::validate(std::shared_ptr<Module> module) {
  State& s = *state_;
  prepare(std::move(module));
  if (!validates()) throw Error("trainer: the module has no val_dataloader to validate with");
  s.validate(*this);
  s.module->log_ = nullptr;
  return s.metrics;
}

std::int64_t Trainer::global_step() const {
  return state_->place.step;
}
std::int64_t Trainer::current_epoch() const {
  return state_->place.epoch;
}
const Metrics& Trainer::callback_metrics() const {
  return state_->metrics;
}
Optimizer& Trainer::optimizer() const {
  if (!state_->optimizer) throw Error("trainer: there is no optimizer before fit()");
  return *state_->optimizer;
}
StepTimes& Trainer::times() {
  return state_->times;
}
bool Trainer::validates() const {
  return state_->val_data.has_value() && state_->val_batches > 0;
}
void Trainer::stop() {
  state_->stops = true;
  if (is_initialized()) session().request_stop();
}
const TrainerOptions& Trainer::options() const {
  return state_->options;
}

}  // namespace dtrain::train

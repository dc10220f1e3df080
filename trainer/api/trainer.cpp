#include "trainer/api/trainer.hpp"

#include <algorithm>
#include <exception>
#include <limits>

#include "trainer/api/trainer_state.hpp"
#include "trainer/core/error.hpp"

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
    o.default_root_dir.reset();
    o.loggers.clear();
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

Trainer::Trainer(TrainerOptions options)
    : state_(std::make_unique<State>(checked(std::move(options)))) {
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
    warn_on_stderr(error.what());
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
    session_options.loggers = options.loggers;
    session_options.metrics_file = options.metrics_file;
    session_options.tensorboard = options.tensorboard;
    session_options.hyperparameters = options.hyperparameters;
    session_options.stop_on_bad_loss = options.stop_on_bad_loss;
    init_options.device = {.benchmark = options.benchmark,
                           .deterministic = options.deterministic,
                           .float32_matmul_precision = options.float32_matmul_precision};
    init(std::move(init_options));
    made_training = true;
  } else {
    // What the session that is there would not do is no silent loss.
    const std::pair<bool, const char*> unheard[] = {
        {!options.loggers.empty(), "loggers"},
        {options.metrics_file.has_value(), "metrics_file"},
        {options.tensorboard.has_value(), "tensorboard"},
        {!options.hyperparameters.empty(), "hyperparameters"},
        {options.stop_on_bad_loss, "stop_on_bad_loss"},
        {options.default_root_dir && !session().can_checkpoint(), "default_root_dir"},
        // Under dtrain it is the job's.
        {checkpoints != nullptr && checkpoints->save_top_k &&
             !context().environment().report_socket,
         "retention"}};
    for (const auto& [is_given, name] : unheard) {
      if (!is_given) continue;
      throw Error("trainer: init() was called before, and its session has the '" +
                  std::string(name) + "': give them to init()");
    }
    apply(DeviceSettings{.benchmark = options.benchmark,
                         .deterministic = options.deterministic,
                         .float32_matmul_precision = options.float32_matmul_precision});
  }
  if (options.seed) set_seed(*options.seed);
  if (!session().can_checkpoint()) checkpoints = nullptr;
  if (stops) session().request_stop();

  module = std::move(its_module);
  module->trainer_ = &trainer;
  // As a whole; parts of it that are frozen by eval() stay so.
  if (!module->is_training()) module->train();
  automatic = module->automatic_optimization();
  DdpOptions ddp_options = options.ddp;
  if (!automatic) {
    if (options.accumulate_grad_batches > 1 || options.gradient_clip_val) {
      throw Error(
          "trainer: accumulate_grad_batches and gradient_clip_val are for automatic optimization; "
          "this module optimizes by hand: do it in training_step (clip_gradient_norm)");
    }
    if (precision_of(options.precision) == Precision::fp16) {
      throw Error("trainer: fp16's loss scale is for automatic optimization: use bf16");
    }
    if (options.ddp.static_graph) {
      throw Error("trainer: static_graph, and a module that optimizes by hand: its graphs differ");
    }
    ddp_options.find_unused_parameters = true;
  }
  ddp = prepare_module(module, {.ddp = ddp_options,
                                .sync_batch_norm = options.sync_batchnorm,
                                .channels_last = options.channels_last,
                                .precision = precision_of(options.precision),
                                .scaler = options.scaler});
  begin_optimizers();

  // Not prepare_data_loader: the loop moves batches by itself, and measures it.
  train_data = module->train_dataloader().shared(context(), /*evaluates=*/false);
  check_alike(context(), &*train_data, "training data");
  train_batches = options.limit_train_batches.of(train_data->batches(), "limit_train_batches");
  if (std::optional<DataLoader> data = module->val_dataloader()) {
    val_data = data->shared(context(), /*evaluates=*/true);
  }
  check_alike(context(), val_data ? &*val_data : nullptr, "validation data");
  if (val_data) {
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
  keep_loop();
  if (!options.fast_dev_run) place = get_checkpoint().value_or(Place{});
  if (place.step > 0) checkpointed_at = place.step;
}

// Callbacks decide by metrics: after a resume they must see what they would have seen.
void Trainer::State::keep_loop() {
  session().keep("trainer",
                 {.save =
                      [its = kept] {
                        return nlohmann::json{{"metrics", metrics_to_json(its->metrics)},
                                              {"means", its->means},
                                              {"validation_due", its->validation_due}};
                      },
                  .load =
                      [its = kept](const nlohmann::json& state) {
                        its->metrics = metrics_from_json(state.at("metrics"));
                        state.value("means", nlohmann::json::object()).get_to(its->means);
                        its->validation_due = state.at("validation_due").get<bool>();
                      },
                  .alike = true});
  // Metrics that are not synced, and sums, are each rank's own.
  session().keep("trainer_rank", {.save =
                                      [its = kept] {
                                        return nlohmann::json{
                                            {"metrics", metrics_to_json(its->metrics)},
                                            {"train_log", its->train_log.state()}};
                                      },
                                  .load =
                                      [its = kept](const nlohmann::json& state) {
                                        its->metrics = metrics_from_json(state.at("metrics"));
                                        its->train_log.load_state(state.at("train_log"));
                                      },
                                  .alike = false});
}

void Trainer::prepare(std::shared_ptr<Module> module) {
  state_->begin(*this, std::move(module));
}

int Trainer::run_until(std::int64_t epochs) {
  State& s = *state_;
  if (epochs < 0 && s.train_batches == 0) {
    throw Error("there is no batch to train on: max_steps would never be reached");
  }
  while (!s.has_ended && !s.is_last_step() && (epochs < 0 || s.place.epoch < epochs)) {
    s.run_epoch(*this);
  }
  return s.preempted ? kExitPreempted : 0;
}

void Trainer::finish() {
  State& s = *state_;
  s.train_log.late().read();
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
  // A training that has ended with an epoch that has no checkpoint of its own.
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
  s.validate(*this, /*may_leave=*/false);
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
  if (state_->optimizers.empty()) throw Error("trainer: there is no optimizer before fit()");
  if (state_->optimizers.size() > 1) {
    throw Error("trainer: there are several optimizers: optimizers() has them");
  }
  return *state_->optimizers[0];
}
const std::vector<std::shared_ptr<Optimizer>>& Trainer::optimizers() const {
  return state_->optimizers;
}
const std::vector<std::string>& Trainer::optimizer_names() const {
  return state_->optimizer_names;
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

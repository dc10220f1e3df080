// Going through a training's epochs: the place, what is told, and leaving.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "trainer/api/current.hpp"
#include "trainer/api/fill_window.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/run.hpp"

namespace dtrain::train {

using internal::Current;
using internal::training;
using internal::with_model;
using internal::with_optimizer;

namespace {

using Part = StepTimes::Part;

void record(Current& t, const LateMetrics& metrics) {
  if (!t.context.is_first()) return;
  t.session->report(t.place.steps(), read_metrics(metrics),
                    t.place.counts() ? std::optional(t.place.place().epoch) : std::nullopt);
}

void save(Current& t, const Place& place, const LateMetrics& metrics) {
  internal::check_schedulers(t);
  t.losses->read();
  t.session->report(place, read_metrics(metrics), *t.model, *t.optimizer);
}

std::vector<std::uint32_t> versions_of(const torch::nn::Module& model) {
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& parameter : model.parameters()) versions.push_back(parameter._version());
  return versions;
}

void note_pass_end(Current& t) {
  t.pass_end = {t.place.steps(), generator_state(t.context.device()), {}, versions_of(*t.model)};
  for (const Kept& scheduler : t.schedulers) t.pass_end.schedulers.push_back(scheduler.save());
}

// All ranks, told to go: with a checkpoint of the last step.
[[noreturn]] void leave(Current& t) {
  if (t.place.at_epochs_end()) {
    set_generator_state(t.pass_end.generators, t.context.device());
    for (std::size_t i = 0; i < t.schedulers.size(); ++i) {
      t.schedulers[i].load(t.pass_end.schedulers.at(i));
    }
  }
  if (t.session->can_checkpoint()) save(t, t.place.place(), t.logged);
  t.session->say("told to go, after step " + std::to_string(t.place.steps()));
  shutdown();
  throw SystemExit{kExitPreempted};
}

}  // namespace

// A pass that the training goes through: what moves its place.
class internal::TrainingPass {
 public:
  TrainingPass(Current& t, const DataLoader& loader, std::int64_t epoch)
      : pass_(loader.pass(epoch, begin(t, loader, epoch))),
        epoch_(epoch),
        batches_of_epoch_(loader.batches()),
        is_evened_(loader.is_stream() && t.context.world_size() > 1) {
    t.pass = this;
  }
  ~TrainingPass() {
    if (!is_initialized() || training().pass != this) return;
    training().context.set_phase("");
    training().pass = nullptr;
    training().place.leave_pass();
  }
  TrainingPass(const TrainingPass&) = delete;
  TrainingPass& operator=(const TrainingPass&) = delete;

  std::optional<Batch> next() {
    Current& t = training();
    if (given_ > 0) after_batch(t);
    t.times.begin();
    t.context.set_phase("data");
    std::optional<Batch> batch = is_evened_ ? next_of_all(t.context) : pass_.next();
    t.times.lap(Part::wait);
    t.context.set_phase(batch ? "compute" : "");
    if (batch) {
      ++given_;
      samples_ += batch->size();
      t.place.give_batch();
    } else {
      t.place.end_pass(pass_.position());
      t.pass = nullptr;
      note_pass_end(t);
    }
    return batch;
  }

  void after_step(Current& t) {
    t.times.lap(Part::compute);
    t.place.move_to(pass_.position());
    has_stepped_ = true;
    ++steps_;
  }

 private:
  static std::int64_t begin(Current& t, const DataLoader& loader, std::int64_t epoch) {
    const std::int64_t position = t.place.begin_pass(epoch);
    // All ranks come here: it is the one pass of the epoch, which moves their common place.
    check_alike(t.context, &loader, "training data");
    return position;
  }

  std::optional<Batch> next_of_all(Context& context) {
    std::deque<Batch> one;
    if (fill_window(pass_, one, 1, context) == 0) return std::nullopt;
    return std::move(one.front());
  }

  void after_batch(Current& t) {
    if (!std::exchange(has_stepped_, false)) {  // its gradients go into a later step
      t.times.lap(Part::compute);
      return;
    }
    t.times.step(std::exchange(samples_, 0));
    if (++t.timed_steps == kWarmUpSteps) t.times.take();
    show(t);
    if (t.session->preempted()) leave(t);
    if (t.checkpoint_every > 0 && t.place.steps() % t.checkpoint_every == 0 &&
        given_ != pass_.batches() && t.session->can_checkpoint()) {
      save(t, t.place.place(), t.logged);
    }
  }

  // Steps of all epochs, if the batches of a step stay as many as they were.
  std::optional<std::int64_t> total(const Current& t) const {
    if (batches_of_epoch_ == DataLoader::kUnknown) return std::nullopt;
    const std::int64_t window = (given_ + steps_ - 1) / steps_;
    const auto steps_of = [&](std::int64_t batches) { return (batches + window - 1) / window; };
    return t.place.steps() + steps_of(pass_.batches() - given_) +
           (t.epochs - epoch_ - 1) * steps_of(batches_of_epoch_);
  }

  void show(Current& t) const {
    const std::int64_t step = t.place.steps();
    const std::optional<std::int64_t> all = total(t);
    const bool is_due = t.session->progress_due(step, all);
    t.session->progress({.step = step,
                         .total = all,
                         .epoch = epoch_,
                         .message = "",
                         .metrics = is_due ? read_metrics(t.logged) : Metrics{}});
  }

  DataLoader::Pass pass_;
  std::int64_t epoch_;
  std::int64_t batches_of_epoch_;
  bool is_evened_;
  std::int64_t given_ = 0;    // batches
  std::int64_t samples_ = 0;  // since the last step
  std::int64_t steps_ = 0;
  bool has_stepped_ = false;  // since the last batch
};

DataLoader::NextBatch internal::train_through(const DataLoader& loader, std::int64_t epoch) {
  return [its = std::make_shared<TrainingPass>(training(), loader, epoch)] { return its->next(); };
}

namespace {

// A pass of a loader that evaluates. Behind an epoch's data, with the weights that they have made,
// a training that is told to go leaves within it.
class EvaluationPass {
 public:
  EvaluationPass(Current& t, const DataLoader& loader, std::int64_t epoch)
      : pass_(loader.pass(epoch)),
        may_leave_(t.place.at_epochs_end() && !t.has_gradients &&
                   t.pass_end.step == t.place.steps() &&
                   t.pass_end.parameters == versions_of(*t.model)) {}
  // Left by break: the other ranks ask this one all the same.
  ~EvaluationPass() {
    if (!may_leave_ || !is_initialized() || std::uncaught_exceptions() > exceptions_) return;
    try {
      agree(training(), /*is_left=*/true);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "warning: an evaluation's end: %s\n", error.what());
    }
  }
  EvaluationPass(const EvaluationPass&) = delete;
  EvaluationPass& operator=(const EvaluationPass&) = delete;

  std::optional<Batch> next() {
    Current* t = may_leave_ ? &training() : nullptr;
    if (t == nullptr || !t->session->told_to_go()) {
      std::optional<Batch> batch = pass_.next();
      if (batch || t == nullptr) return batch;
    }
    if (agree(*t, /*is_left=*/false)) leave(*t);
    return std::nullopt;
  }

 private:
  // Ranks have different numbers of batches, so that they agree here only. True if all are to leave
  // and can now; where some are behind a break it is done by the next function that can.
  bool agree(Current& t, bool is_left) {
    may_leave_ = false;
    const std::vector<double> all = t.context.all_reduce_sum(
        std::vector<double>{t.session->told_to_go() ? 1.0 : 0.0, is_left ? 1.0 : 0.0});
    t.leaves = all[0] > 0;
    return t.leaves && all[1] == 0;
  }

  DataLoader::Pass pass_;
  bool may_leave_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

DataLoader::NextBatch internal::evaluate_through(const DataLoader& loader, std::int64_t epoch) {
  return
      [its = std::make_shared<EvaluationPass>(training(), loader, epoch)] { return its->next(); };
}

Epochs::Iterator Epochs::begin() {
  Current& t = with_optimizer();
  if (!t.has_resumed) get_checkpoint();
  t.place.begin_epochs();
  has_begun_ = true;
  t.epochs = count_;
  t.logged_at = t.place.steps();
  const std::int64_t first = t.place.next_epoch();
  if (first < count_) t.place.begin_epoch(first);
  return {first, count_};
}

Epochs::Iterator& Epochs::Iterator::operator++() {
  if (training().leaves) leave(training());
  training().place.begin_epoch(++at_);
  return *this;
}

Epochs::~Epochs() {
  if (has_begun_ && is_initialized()) training().place.end_epochs();
}

Evaluation::Evaluation()
    : model_(with_model().model), modes_(*model_), phase_(context().set_phase("validation")) {
  const Current& t = training();
  if (!t.own_buffers) t.ddp->sync_buffers();
  model_->eval();
}

Evaluation::~Evaluation() {
  modes_.restore(*model_);
  if (is_initialized()) context().set_phase(phase_);  // else a training that has left within it
}

void count_step() {
  Current& t = training();
  t.has_gradients = false;
  t.place.step();
  if (t.pass != nullptr) t.pass->after_step(t);
}

std::int64_t global_step() {
  return training().place.steps();
}

void log(LateMetrics metrics) {
  Current& t = training();
  t.logged = std::move(metrics);
  const std::int64_t step = t.place.steps();
  if (step == 0 || step % t.log_every != 0 || std::exchange(t.logged_at, step) == step) return;
  record(t, t.logged);
}

void report(const LateMetrics& metrics) {
  record(training(), metrics);
}

void save_checkpoint(const LateMetrics& metrics) {
  Current& t = with_optimizer();
  if (t.leaves) leave(t);
  const Place place = t.place.place_to_save();
  // Dropped ones are none, by whomever.
  const std::vector<at::Tensor> all = t.model->parameters();
  if (t.has_gradients && std::any_of(all.begin(), all.end(), [](const at::Tensor& parameter) {
        return parameter.grad().defined();
      })) {
    throw Error(
        "save_checkpoint(): backward() was called since the last optimizer_step(), and no "
        "checkpoint has its gradients: save behind the step, or drop them by zero_grad()");
  }
  save(t, place, metrics);
}

bool can_checkpoint() {
  return session().can_checkpoint();
}

Metrics throughput() {
  Current& t = training();
  if (t.timed_steps <= kWarmUpSteps) return {};
  Metrics speed = t.times.take();
  if (const auto found = speed.find("samples_per_second"); found != speed.end()) {
    found->second *= t.context.world_size();
  }
  return speed;
}

}  // namespace dtrain::train

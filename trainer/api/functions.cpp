#include "trainer/api/functions.hpp"

#include <exception>

#include "trainer/api/current.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/batch_norm.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/objects.hpp"
#include "trainer/train/optimizer_set.hpp"
#include "trainer/train/zero.hpp"

namespace dtrain::train {

using internal::check_schedulers;
using internal::Current;
using internal::training;
using internal::with_model;
using internal::with_optimizer;

namespace {

std::unique_ptr<Current>& slot() {
  static std::unique_ptr<Current> one;
  return one;
}

template <typename Value>
void take(Value& of_session, Value& said, const Value& unsaid, const char* name) {
  if (said == unsaid) return;
  if (of_session != unsaid) {
    throw Error("init: '" + std::string(name) + "' is said twice: once more in `session`");
  }
  of_session = std::move(said);
}

Session::Options session_options(InitOptions& options) {
  Session::Options its = std::move(options.session);
  take(its.storage, options.storage, {}, "storage");
  take(its.metrics_file, options.metrics_file, {}, "metrics_file");
  take(its.tensorboard, options.tensorboard, {}, "tensorboard");
  take(its.hyperparameters, options.hyperparameters, nlohmann::json::object(), "hyperparameters");
  return its;
}

}  // namespace

Current::Current(InitOptions options)
    : context((apply(options.device), Context::join(read_environment(), options.context))),
      log_every(options.log_every_n_steps),
      checkpoint_every(options.checkpoint_every_n_steps) {
  if (log_every < 1) throw Error("init: log_every_n_steps must be at least 1");
  if (checkpoint_every < 0) throw Error("init: checkpoint_every_n_steps must be at least 0");
  session.emplace(context, session_options(options));
  losses.emplace(*session, context.device().is_cpu() ? 1 : log_every);
}

Current& internal::training() {
  if (!slot()) throw Error("no training in this process: call init() first");
  return *slot();
}

Current& internal::with_model() {
  Current& t = training();
  if (!t.model) throw Error("there is no model yet: call prepare_model() first");
  return t;
}

Current& internal::with_optimizer() {
  Current& t = with_model();
  if (!t.optimizer) throw Error("there is no optimizer yet: call prepare_optimizer() first");
  return t;
}

void internal::check_schedulers(const Current& t) {
  for (const auto& [name, optimizer] : t.optimizers) {
    if (optimizer->unkept_schedulers() == 0) continue;
    throw Error(
        "a Scheduler moves the optimizer's rate and checkpoints do not keep it: "
        "call prepare_scheduler() before get_checkpoint()");
  }
}

namespace {

Current& with_one_optimizer(const char* what) {
  Current& t = with_optimizer();
  if (t.optimizers.size() == 1) return t;
  throw Error(std::string(what) +
              "() is for one optimizer: of several each takes its steps by itself, "
              "optimizer->step(), after clip_gradient_norm(*optimizer, …)");
}

}  // namespace

Context& init(InitOptions options) {
  if (slot()) throw Error("init() was called already in this process");
  slot() = std::make_unique<Current>(std::move(options));
  return slot()->context;
}

bool is_initialized() {
  return slot() != nullptr;
}

void shutdown() {
  if (!slot()) return;
  // The training ends here, also when its last checkpoint was not committed: then, and when an
  // exception flies already, nobody is waited for.
  const std::unique_ptr<Current> current = std::move(slot());
  if (std::uncaught_exceptions() != 0) return;
  current->losses->read();
  current->session->finish();
}

Context& context() {
  return training().context;
}

Session& session() {
  return *training().session;
}

std::optional<std::filesystem::path> storage_path() {
  return session().storage();
}

Strategy strategy_of(const std::string& name) {
  if (name == "ddp" || name == "auto" || name == "horovod" || name == "ring") return Strategy::ddp;
  if (name == "zero1") return Strategy::zero1;
  if (name == "zero2") return Strategy::zero2;
  throw Error("strategy '" + name + "' is not known; there are ddp, zero1 and zero2");
}

void internal::move_model(torch::nn::Module& model, const PrepareModel& options) {
  Current& t = training();
  if (t.model) throw Error("prepare_model() was called already: one model for a training");
  model.to(t.context.device());
  if (options.channels_last) {
    for (const at::Tensor& parameter : model.parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
  }
  if (options.sync_batch_norm) sync_batch_norm(model, t.context);
}

void internal::keep_model(std::shared_ptr<torch::nn::Module> model,
                          std::shared_ptr<DistributedDataParallel> ddp,
                          const PrepareModel& options) {
  Current& t = training();
  t.model = std::move(model);
  t.ddp = std::move(ddp);
  t.precision = options.precision;
  t.own_buffers = !options.ddp.broadcast_buffers;
  GradScaler::Options scaler = options.scaler;
  scaler.enabled = scaler.enabled && options.precision == Precision::fp16;
  t.scaler.emplace(t.context, scaler);
  t.session->keep("buckets", {.save = [&t] { return nlohmann::json(t.ddp->layout_to_keep()); },
                              .load =
                                  [&t](const nlohmann::json& kept) {
                                    const auto layout = kept.get<BucketLayout>();
                                    if (!layout.empty()) t.ddp->use_layout(layout);
                                  },
                              .alike = true});
  // Each rank has buffers of its own then: the model's in the checkpoint are rank 0's.
  if (!options.ddp.broadcast_buffers && t.context.world_size() > 1) {
    t.session->keep_tensors(
        "buffers",
        [its = t.model] {
          TensorMap buffers;
          for (const auto& item : its->named_buffers()) buffers.emplace(item.key(), item.value());
          return buffers;
        },
        /*alike=*/false);
  }
  if (scaler.enabled) {
    t.session->keep("scaler", {.save = [&t] { return t.scaler->state(); },
                               .load = [&t](const auto& state) { t.scaler->load_state(state); },
                               .alike = true});
  }
}

std::shared_ptr<DistributedDataParallel> prepare_module(std::shared_ptr<torch::nn::Module> model,
                                                        const PrepareModel& options) {
  internal::move_model(*model, options);
  auto ddp = std::make_shared<DistributedDataParallel>(model, context(), options.ddp);
  internal::keep_model(std::move(model), ddp, options);
  return ddp;
}

std::shared_ptr<Optimizer> prepare_optimizer(std::shared_ptr<Optimizer> optimizer,
                                             Strategy strategy, const std::string& name) {
  Current& t = with_model();
  if (!t.optimizers.empty()) {
    if (name.empty() || t.optimizers.contains(name) || t.optimizers.contains("")) {
      throw Error(
          "prepare_optimizer() was called already: of several optimizers each, the first too, "
          "needs a name of its own, under which checkpoints keep it");
    }
    if (t.precision == Precision::fp16) {
      throw Error("fp16 has one loss scale, for one optimizer: use bf16 with several");
    }
  }
  if (strategy != Strategy::ddp) {
    if (optimizer->unkept_schedulers() > 0) {
      throw Error(
          "zero1 and zero2 take the optimizer's place: make the Scheduler on what "
          "prepare_optimizer() returns");
    }
    optimizer = std::make_shared<ZeroOptimizer>(
        std::move(optimizer), t.context, t.ddp.get(),
        strategy == Strategy::zero2 ? ZeroStage::gradients : ZeroStage::state);
  }
  OptimizerSet::Named all = t.optimizers;
  all.emplace(name, optimizer);
  t.optimizer = all.size() == 1 ? optimizer : std::make_shared<OptimizerSet>(all);
  t.optimizers = std::move(all);
  return optimizer;
}

namespace {

template <typename Its>
std::shared_ptr<Its> keep_scheduler(std::shared_ptr<Its> scheduler, const std::string& name) {
  Current& t = with_optimizer();
  std::shared_ptr<Optimizer> optimizer;
  for (const auto& [its_name, each] : t.optimizers) {
    if (&scheduler->optimizer() == each.get()) optimizer = each;
  }
  if (!optimizer) {
    throw Error(
        "prepare_scheduler: the scheduler is of another optimizer than the one that "
        "prepare_optimizer() returned");
  }
  if (t.has_resumed) {
    throw Error("prepare_scheduler() comes too late: get_checkpoint() would have loaded its state");
  }
  t.schedulers.push_back(
      {[scheduler, optimizer] { return scheduler->state(); },
       [scheduler, optimizer](const auto& state) { scheduler->load_state(state); }, true,
       [scheduler, optimizer] { scheduler->begin_anew(); },
       [scheduler, optimizer](const auto& state, const Warn& warn) {
         scheduler->load_state_of_other_ranks(state, warn);
       }});
  t.session->keep(name, t.schedulers.back());
  scheduler->set_kept();
  return scheduler;
}

}  // namespace

std::shared_ptr<Scheduler> prepare_scheduler(std::shared_ptr<Scheduler> scheduler,
                                             const std::string& name) {
  return keep_scheduler(std::move(scheduler), name);
}

std::shared_ptr<ReduceLROnPlateau> prepare_scheduler(std::shared_ptr<ReduceLROnPlateau> scheduler,
                                                     const std::string& name) {
  return keep_scheduler(std::move(scheduler), name);
}

std::shared_ptr<Scheduler> prepare_scheduler(SchedulePtr schedule, Scheduler::Per per) {
  return prepare_scheduler(std::make_shared<Scheduler>(
      *with_one_optimizer("prepare_scheduler").optimizer, std::move(schedule), per));
}

GradScaler& internal::scaler() {
  return *with_model().scaler;
}

DataLoader prepare_data_loader(const DataLoader& loader, bool evaluates) {
  return loader.shared(context(), evaluates)
      .on(context().device())
      .with_epochs(evaluates ? internal::evaluate_through : internal::train_through);
}

std::unique_ptr<Autocast> autocast() {
  return std::make_unique<Autocast>(context().device(), training().precision);
}

void backward(const at::Tensor& loss) {
  Current& t = with_model();
  t.scaler->scale(loss).backward();
  t.has_gradients = true;
  if (t.place.counts()) t.losses->add(t.place.steps() + 1, loss);
}

void unscale_gradients() {
  Current& t = with_one_optimizer("unscale_gradients");
  if (!t.scaler->unscaled()) t.scaler->unscale(*t.optimizer);
}

double clip_gradients(double max_norm) {
  Current& t = with_one_optimizer("clip_gradients");
  unscale_gradients();
  return clip_gradient_norm(*t.optimizer, max_norm);
}

bool optimizer_step() {
  Current& t = with_one_optimizer("optimizer_step");
  const bool taken = t.scaler->step(*t.optimizer);
  t.optimizer->zero_grad();
  count_step();
  return taken;
}

void zero_grad() {
  Current& t = with_model();
  zero_grad(*t.model);
  if (t.optimizer) t.optimizer->zero_grad();
  t.has_gradients = false;
}

DistributedDataParallel::NoSync no_sync() {
  return with_model().ddp->no_sync();
}

void report(std::int64_t step, const LateMetrics& metrics) {
  if (context().is_first()) session().report(step, read_metrics(metrics));
}

void report(const LateMetrics& metrics, const Place& place) {
  Current& t = with_optimizer();
  check_schedulers(t);
  if (t.place.counts()) {
    throw Error(
        "report(metrics, place): the library counts the place since epochs(): use "
        "save_checkpoint(metrics), or count it by hand alone");
  }
  t.session->report(place, read_metrics(metrics), *t.model, *t.optimizer);
}

std::optional<std::filesystem::path> report(std::int64_t step, const LateMetrics& metrics,
                                            const std::optional<Checkpoint>& files) {
  return session().report(step, read_metrics(metrics), files);
}

std::optional<std::filesystem::path> checkpoint_directory() {
  return session().checkpoint_directory();
}

std::optional<Place> get_checkpoint() {
  Current& t = with_optimizer();
  check_schedulers(t);
  t.has_resumed = true;
  const std::optional<Place> place = t.session->resume(*t.model, *t.optimizer);
  if (place) t.place.resume_at(*place);
  return place;
}

void barrier() {
  context().barrier();
}

void all_reduce_sum(at::Tensor tensor) {
  context().all_reduce_sum(std::move(tensor));
}

double all_reduce_sum(double value) {
  return context().all_reduce_sum(value);
}

double all_reduce_mean(double value) {
  return context().all_reduce_sum(value) / context().world_size();
}

void broadcast(at::Tensor tensor, int from) {
  context().broadcast(std::move(tensor), from);
}

std::vector<at::Tensor> all_gather(const at::Tensor& tensor) {
  return context().all_gather(tensor);
}

nlohmann::json broadcast(const nlohmann::json& value, int from) {
  return broadcast_object(context(), value, from);
}

std::vector<nlohmann::json> all_gather(const nlohmann::json& value) {
  return all_gather_objects(context(), value);
}

void set_seed(std::uint64_t seed) {
  context().seed(seed);
}

}  // namespace dtrain::train

#include "trainer/api/functions.hpp"

#include <exception>

#include "trainer/core/error.hpp"
#include "trainer/train/batch_norm.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/objects.hpp"
#include "trainer/train/zero.hpp"

namespace dtrain::train {
namespace {

// One training of a process. Members end in the reverse order: the context last.
struct Current {
  explicit Current(InitOptions options)
      : context(Context::join(read_environment(), options.context)) {
    session.emplace(context, std::move(options.session));
  }

  Context context;
  std::optional<Session> session;
  std::shared_ptr<torch::nn::Module> model;
  std::shared_ptr<DistributedDataParallel> ddp;
  std::shared_ptr<Optimizer> optimizer;
  std::optional<GradScaler> scaler;
  Precision precision = Precision::fp32;
  bool has_resumed = false;
};

std::unique_ptr<Current>& slot() {
  static std::unique_ptr<Current> one;
  return one;
}

Current& training() {
  if (!slot()) throw Error("no training in this process: call init() first");
  return *slot();
}

Current& with_model() {
  Current& t = training();
  if (!t.model) throw Error("there is no model yet: call prepare_model() first");
  return t;
}

Current& with_optimizer() {
  Current& t = with_model();
  if (!t.optimizer) throw Error("there is no optimizer yet: call prepare_optimizer() first");
  return t;
}

// A checkpoint without its scheduler would begin the schedule anew, and nobody would see it.
void check_schedulers(const Current& t) {
  if (t.optimizer->unkept_schedulers() == 0) return;
  throw Error(
      "a Scheduler moves the optimizer's rate and checkpoints do not keep it: "
      "call prepare_scheduler() before get_checkpoint()");
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
  if (std::uncaught_exceptions() == 0) current->session->finish();
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
  throw Error("strategy '" + name + "' is not known; there are ddp and zero1");
}

void internal::move_model(torch::nn::Module& model, const PrepareModel& options) {
  Current& t = training();
  if (t.model) throw Error("prepare_model() was called already: one model for a training");
  model.to(t.context.device());
  if (options.channels_last) {
    for (at::Tensor parameter : model.parameters()) {
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
                                             Strategy strategy) {
  Current& t = with_model();
  if (t.optimizer) throw Error("prepare_optimizer() was called already");
  if (strategy == Strategy::zero1) {
    if (optimizer->unkept_schedulers() > 0) {
      throw Error(
          "zero1 takes the optimizer's place: make the Scheduler on what "
          "prepare_optimizer() returns");
    }
    optimizer = std::make_shared<ZeroOptimizer>(std::move(optimizer), t.context);
  }
  t.optimizer = std::move(optimizer);
  return t.optimizer;
}

std::shared_ptr<Scheduler> prepare_scheduler(std::shared_ptr<Scheduler> scheduler,
                                             const std::string& name) {
  Current& t = with_optimizer();
  if (&scheduler->optimizer() != t.optimizer.get()) {
    throw Error(
        "prepare_scheduler: the scheduler is of another optimizer than the one that "
        "prepare_optimizer() returned");
  }
  if (t.has_resumed) {
    throw Error("prepare_scheduler() comes too late: get_checkpoint() would have loaded its state");
  }
  t.session->keep(
      name,
      {.save = [scheduler, of = t.optimizer] { return scheduler->state(); },
       .load = [scheduler, of = t.optimizer](const auto& state) { scheduler->load_state(state); },
       .alike = true});
  scheduler->set_kept();
  return scheduler;
}

DataLoader prepare_data_loader(const DataLoader& loader, bool evaluates) {
  return loader.shared(context(), evaluates).on(context().device());
}

std::unique_ptr<Autocast> autocast() {
  return std::make_unique<Autocast>(context().device(), training().precision);
}

void backward(const at::Tensor& loss) {
  with_model().scaler->scale(loss).backward();
}

void unscale_gradients() {
  Current& t = with_optimizer();
  if (!t.scaler->unscaled()) t.scaler->unscale(*t.optimizer);
}

double clip_gradients(double max_norm) {
  unscale_gradients();
  return clip_gradient_norm(with_optimizer().optimizer->parameters(), max_norm);
}

bool optimizer_step() {
  Current& t = with_optimizer();
  const bool taken = t.scaler->step(*t.optimizer);
  t.optimizer->zero_grad();
  return taken;
}

void zero_grad() {
  with_model();
  zero_grad(*training().model);
}

DistributedDataParallel::NoSync no_sync() {
  return with_model().ddp->no_sync();
}

void report(std::int64_t step, const Metrics& metrics) {
  session().report(step, metrics);
}

void report(const Metrics& metrics, const Place& place) {
  Current& t = with_optimizer();
  check_schedulers(t);
  t.session->report(place, metrics, *t.model, *t.optimizer);
}

std::optional<Place> get_checkpoint() {
  Current& t = with_optimizer();
  check_schedulers(t);
  t.has_resumed = true;
  return t.session->resume(*t.model, *t.optimizer);
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

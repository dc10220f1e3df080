#pragma once

#include <c10/core/GradMode.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/api/data_loader.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/device_settings.hpp"
#include "trainer/train/late_metrics.hpp"
#include "trainer/train/module_modes.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/optimizer_factories.hpp"
#include "trainer/train/precision.hpp"
#include "trainer/train/reduce_lr_on_plateau.hpp"
#include "trainer/train/scheduler.hpp"
#include "trainer/train/session.hpp"

// Training as functions, like Python's ray.train and ray.train.torch: one training in a process,
// joined by init(). Each is a thin word for the classes in trainer/train/, which can be used
// beside them and without them. All are for one thread, the training's; "collective" means that
// every rank calls it, in the same order.
//
//     int main() {
//       return run([] {
//         init({.storage = "runs/net"});
//         auto model = prepare_model(std::make_shared<Net>());
//         prepare_optimizer(adam(*model, {.lr = 1e-3}));
//         const DataLoader loader = prepare_data_loader(DataLoader::of_tensors(…));
//         for (const auto epoch : epochs(10)) {
//           for (const auto& [images, labels] : loader.epoch(epoch)) {
//             const at::Tensor loss = cross_entropy(model(images), labels);
//             backward(loss);
//             optimizer_step();
//             log({{"loss", loss}});
//           }
//           save_checkpoint({{"accuracy", …}});
//         }
//         shutdown();
//         return 0;
//       });
//     }
namespace dtrain::train {

struct InitOptions {
  // What is said most of `session`, which has the rest; said in both it is an Error.
  std::optional<std::filesystem::path> storage = {};
  std::optional<std::filesystem::path> metrics_file = {};
  std::optional<std::filesystem::path> tensorboard = {};
  nlohmann::json hyperparameters = nlohmann::json::object();

  std::int64_t log_every_n_steps = 50;  // of what log() is told
  // Within an epoch, by epochs(), with the metrics that log() was told last. 0: none.
  std::int64_t checkpoint_every_n_steps = 0;
  DeviceSettings device = {};  // benchmark, deterministic, float32_matmul_precision
  Context::Options context = {};
  Session::Options session = {};
};

// Joins the group that the environment names (dtrain's, torchrun's, Slurm's, or nobody's), and
// begins the session. Collective. Throws Error if there is a training already.
Context& init(InitOptions options = {});
bool is_initialized();
// Waits for the last checkpoint and leaves the group, in that order. Collective. What was prepared
// must not be used any more. Without it the process's end does the same, and can only print what
// went wrong. Throws Error on every rank if the checkpoint was not committed; the training is over
// all the same.
void shutdown();

// Throw Error before init(). World size, ranks, node, device, storage, run name, restart count.
Context& context();
Session& session();
std::optional<std::filesystem::path> storage_path();

// How the ranks share the work. "ddp", or by Python libraries' other names for it "horovod" and
// "ring"; "zero1": the optimizer's state is shared out as well; "zero2": so are the gradients
// (trainer/train/zero.hpp). "auto" is ddp.
enum class Strategy : std::uint8_t { ddp, zero1, zero2 };
Strategy strategy_of(const std::string& name);  // throws Error on others

struct PrepareModel {
  DdpOptions ddp = {};
  bool sync_batch_norm = false;
  bool channels_last = false;  // slower for ResNet on the CPU that was measured
  Precision precision = Precision::fp32;
  GradScaler::Options scaler = {};  // with fp16
};

// A model that was prepared, called like itself: `model(images)`. A value that is cheap to copy,
// and like a ModuleHolder of the program's own module: `model->eval()`, `adam(*model)`.
template <typename Module>
class PreparedModel {
 public:
  explicit PreparedModel(std::shared_ptr<Ddp<Module>> ddp) : ddp_(std::move(ddp)) {}

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) const {
    return (*ddp_)(std::forward<Inputs>(inputs)...);
  }
  Module* operator->() const { return &ddp_->module(); }
  Module& operator*() const { return ddp_->module(); }
  const std::shared_ptr<Module>& ptr() const { return ddp_->module_ptr(); }
  Ddp<Module>& ddp() const { return *ddp_; }

 private:
  std::shared_ptr<Ddp<Module>> ddp_;
};

// Moves the model to the device, makes it DDP, and has checkpoints keep it, its buckets' layout
// and the loss scale. One model for a training. Collective.
template <typename Model>
PreparedModel<Model> prepare_model(std::shared_ptr<Model> model, const PrepareModel& options = {});
template <typename Impl>
PreparedModel<Impl> prepare_model(const torch::nn::ModuleHolder<Impl>& model,
                                  const PrepareModel& options = {}) {
  return prepare_model(model.ptr(), options);
}
// The same for a module whose forward() the program calls itself.
std::shared_ptr<DistributedDataParallel> prepare_module(std::shared_ptr<torch::nn::Module> model,
                                                        const PrepareModel& options = {});

// Checkpoints keep it. Throws Error if `strategy` cannot share it out. After prepare_model.
// Of several (a generator's and a discriminator's) each has a name of its own, under which its
// state is kept, and takes its steps by itself, optimizer->step(), of which count_step() is told:
// optimizer_step() and clip_gradients() are Errors then, as is fp16. DDP wants
// find_unused_parameters and, for each backward, prepare_:
//     model.ddp().prepare_forward();  const auto loss = …(*model)…;
//     backward(model.ddp().prepare_backward({loss})[0]);
std::shared_ptr<Optimizer> prepare_optimizer(std::shared_ptr<Optimizer> optimizer,
                                             Strategy strategy = Strategy::ddp,
                                             const std::string& name = "");

// Checkpoints keep it, so that a resume goes on along the schedule. Made on what prepare_optimizer
// returned, before get_checkpoint(). A scheduler of the optimizer that was not prepared makes
// get_checkpoint() and report() with a checkpoint throw Error. `name` tells several apart.
std::shared_ptr<Scheduler> prepare_scheduler(std::shared_ptr<Scheduler> scheduler,
                                             const std::string& name = "scheduler");
std::shared_ptr<ReduceLROnPlateau> prepare_scheduler(std::shared_ptr<ReduceLROnPlateau> scheduler,
                                                     const std::string& name = "scheduler");
// The same, of the prepared optimizer's rate.
std::shared_ptr<Scheduler> prepare_scheduler(SchedulePtr schedule,
                                             Scheduler::Per per = Scheduler::Per::step);

// This rank's share of it, as batches on the context's device; see DataLoader::shared and ::on.
// Its epoch() counts the place (epochs), unless it `evaluates`.
DataLoader prepare_data_loader(const DataLoader& loader, bool evaluates = false);

// The epochs of a training, up to `count` in all, beginning where the newest checkpoint stood,
// which it loads (get_checkpoint) if that was not done.
//
//     for (const auto epoch : epochs(10)) {
//       for (const auto& [images, labels] : loader.epoch(epoch)) { … optimizer_step(); … }
//       …
//     }
//
// From here on the library counts the place. Within an epoch, loader.epoch() of the one prepared
// loader that is trained on
//   - begins behind the batch of the last step that the checkpoint has seen. After a last batch of
//     an epoch that is nothing, and what comes behind the loop is done again;
//   - throws Error on every rank where they have not the same data (check_alike);
//   - gives all ranks as many batches: of a stream, a rank whose part is shorter begins it anew;
//   - writes checkpoints (InitOptions::checkpoint_every_n_steps), shows the live line, and counts
//     samples and waiting (throughput);
//   - on SIGTERM to any rank: ends all after the same step, with a checkpoint, where one can be
//     written, by SystemExit with kExitPreempted, which run() returns: what would come behind the
//     loop does not happen.
// A loop that is left by break ends its epoch: a checkpoint behind it goes on with the next one. A
// step is one optimizer_step(), of however many batches. Loaders that evaluate move nothing; on
// SIGTERM in one behind an epoch's last batch the training leaves too, and the next start does that
// evaluation again, and all that stands behind the epoch's data: schedulers and generators are as
// they were then, and what a program keeps itself should be. All ranks go through such a loader, or
// none; each may break out of it.
class Epochs {
 public:
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    Iterator(std::int64_t at, std::int64_t count) : at_(at), count_(count) {}
    std::int64_t operator*() const { return at_; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t /*end*/) const { return at_ >= count_; }

   private:
    std::int64_t at_;
    std::int64_t count_;
  };
  explicit Epochs(std::int64_t count) : count_(count) {}
  ~Epochs();
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;
  Iterator begin();  // collective
  static std::default_sentinel_t end() { return {}; }

 private:
  std::int64_t count_;
  bool has_begun_ = false;
};
inline Epochs epochs(std::int64_t count) {
  return Epochs(count);
}

// While it lives the prepared model is in evaluation mode, with rank 0's buffers (unless each rank
// has its own), and nothing takes gradients. Then each submodule's mode is as it was. Collective.
class Evaluation {
 public:
  Evaluation();
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> model_;
  ModuleModes modes_;
  const char* phase_;  // before it
  c10::NoGradGuard no_grad_;
};

// Forward passes while it lives compute in the model's precision.
[[nodiscard]] std::unique_ptr<Autocast> autocast();
// The loss's gradients, scaled as the precision needs.
void backward(const at::Tensor& loss);
// Divides the loss scale out of the gradients, if there is one and that was not done: before
// clipping. Collective with fp16.
void unscale_gradients();
double clip_gradients(double max_norm);  // the norm before
// The step, unless a gradient is infinite with fp16, and then zero_grad(). True if taken.
bool optimizer_step();
void zero_grad();
// What optimizer_step() does for epochs(), for a program that steps its optimizers itself.
void count_step();
// Steps counted, in all starts of the training.
std::int64_t global_step();
[[nodiscard]] DistributedDataParallel::NoSync no_sync();

// Metrics of this step: shown in the live line, and reported at each log_every_n_steps'th step.
// To be called in each: a tensor is read only where its number is wanted, so that no step waits for
// a GPU. Rank 0's are kept.
void log(LateMetrics metrics);
// The same, reported at once.
void report(const LateMetrics& metrics);
// Reported with a checkpoint of model, optimizer and all that is kept, of this place in epochs().
// Collective. Throws Error where the place is not known, where backward() was called since the
// last step (its gradients are in no checkpoint), or if there is nowhere to put it.
void save_checkpoint(const LateMetrics& metrics = {});
bool can_checkpoint();  // somebody said where to

// samples_per_second over all ranks, step_ms, and the parts of it (StepTimes::take) of the steps in
// epochs() since the last call; evaluations, checkpoints and reports do not count. Nothing until
// this process has done kWarmUpSteps more: memory is new in the first ones, and buckets are tuned.
inline constexpr std::int64_t kWarmUpSteps = 20;
Metrics throughput();

// For loops that count their place themselves (DataLoader::pass), not within epochs().
//
// Metrics of a step. The second with a checkpoint: `place` is where a resume goes on. Collective
// with a checkpoint.
void report(std::int64_t step, const LateMetrics& metrics);
void report(const LateMetrics& metrics, const Place& place);
// The third with files of the program's own: see Session::report. Its path once it is committed.
std::optional<std::filesystem::path> report(std::int64_t step, const LateMetrics& metrics,
                                            const std::optional<Checkpoint>& files);
// The folder of such files to resume from: see Session::checkpoint_directory.
std::optional<std::filesystem::path> checkpoint_directory();
// Loads the newest checkpoint, if there is one, into what was prepared, and says where it stood.
// Once, after the prepare_ functions of model, optimizer and schedulers. Collective.
std::optional<Place> get_checkpoint();

void barrier();
void all_reduce_sum(at::Tensor tensor);
double all_reduce_sum(double value);
double all_reduce_mean(double value);
void broadcast(at::Tensor tensor, int from = 0);
std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
nlohmann::json broadcast(const nlohmann::json& value, int from = 0);
std::vector<nlohmann::json> all_gather(const nlohmann::json& value);

// This rank's generators: seed + rank, so that ranks differ. Data loaders have seeds of their own.
void set_seed(std::uint64_t seed);

namespace internal {
GradScaler& scaler();
void move_model(torch::nn::Module& model, const PrepareModel& options);
void keep_model(std::shared_ptr<torch::nn::Module> model,
                std::shared_ptr<DistributedDataParallel> ddp, const PrepareModel& options);
}  // namespace internal

template <typename Model>
PreparedModel<Model> prepare_model(std::shared_ptr<Model> model, const PrepareModel& options) {
  internal::move_model(*model, options);
  auto ddp = std::make_shared<Ddp<Model>>(model, context(), options.ddp);
  internal::keep_model(model, ddp, options);
  return PreparedModel<Model>(std::move(ddp));
}

}  // namespace dtrain::train

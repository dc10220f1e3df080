#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/api/data_loader.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/precision.hpp"
#include "trainer/train/scheduler.hpp"
#include "trainer/train/session.hpp"

// Training as functions, like Python's ray.train and ray.train.torch: one training in a process,
// joined by init(). Each is a thin word for the classes in trainer/train/, which can be used
// beside them and without them. All are for one thread, the training's; "collective" means that
// every rank calls it, in the same order.
//
//     int main() {
//       return run([] {
//         init();
//         auto model = prepare_model(std::make_shared<Net>());
//         auto optimizer = prepare_optimizer(std::make_shared<Adam>(named_parameters(…), …));
//         const DataLoader data = prepare_data_loader(DataLoader::of_tensors(…));
//         Place place = get_checkpoint().value_or(Place{});
//         for (; place.epoch < 10; ++place.epoch) {
//           auto pass = data.pass(place.epoch);
//           while (auto batch = pass.next()) {
//             backward(cross_entropy((*model)((*batch)[0]), (*batch)[1]));
//             optimizer_step();
//             ++place.step;
//           }
//           report({{"loss", …}}, Place{place.step, place.epoch + 1, 0});
//         }
//         shutdown();
//         return 0;
//       });
//     }
namespace dtrain::train {

struct InitOptions {
  Context::Options context;
  Session::Options session;
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
// "ring"; "zero1": the optimizer's state is shared out as well. "auto" is ddp.
enum class Strategy : std::uint8_t { ddp, zero1 };
Strategy strategy_of(const std::string& name);  // throws Error on others

struct PrepareModel {
  DdpOptions ddp;
  bool sync_batch_norm = false;
  bool channels_last = false;  // slower for ResNet on the CPU that was measured
  Precision precision = Precision::fp32;
  GradScaler::Options scaler;  // with fp16
};

// Moves the model to the device, makes it DDP, and has checkpoints keep it, its buckets' layout
// and the loss scale. One model for a training. Collective.
std::shared_ptr<DistributedDataParallel> prepare_module(std::shared_ptr<torch::nn::Module> model,
                                                        const PrepareModel& options = {});
// The same, as something to call like the model itself.
template <typename Model>
std::shared_ptr<Ddp<Model>> prepare_model(std::shared_ptr<Model> model,
                                          const PrepareModel& options = {});
template <typename Impl>
std::shared_ptr<Ddp<Impl>> prepare_model(const torch::nn::ModuleHolder<Impl>& model,
                                         const PrepareModel& options = {}) {
  return prepare_model(model.ptr(), options);
}

// Checkpoints keep it. Throws Error if `strategy` cannot share it out. After prepare_model.
std::shared_ptr<Optimizer> prepare_optimizer(std::shared_ptr<Optimizer> optimizer,
                                             Strategy strategy = Strategy::ddp);

// Checkpoints keep it, so that a resume goes on along the schedule. Made on what prepare_optimizer
// returned, before get_checkpoint(). A scheduler of the optimizer that was not prepared makes
// get_checkpoint() and report() with a checkpoint throw Error. `name` tells several apart.
std::shared_ptr<Scheduler> prepare_scheduler(std::shared_ptr<Scheduler> scheduler,
                                             const std::string& name = "scheduler");

// This rank's share of it, as batches on the context's device; see DataLoader::shared and ::on.
DataLoader prepare_data_loader(const DataLoader& loader, bool evaluates = false);

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
[[nodiscard]] DistributedDataParallel::NoSync no_sync();

// Metrics of a step; rank 0's are kept. The second with a checkpoint of model, optimizer and all
// that is kept: `place` is where a resume goes on. Collective with a checkpoint.
void report(std::int64_t step, const Metrics& metrics);
void report(const Metrics& metrics, const Place& place);
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
void move_model(torch::nn::Module& model, const PrepareModel& options);
void keep_model(std::shared_ptr<torch::nn::Module> model,
                std::shared_ptr<DistributedDataParallel> ddp, const PrepareModel& options);
}  // namespace internal

template <typename Model>
std::shared_ptr<Ddp<Model>> prepare_model(std::shared_ptr<Model> model,
                                          const PrepareModel& options) {
  internal::move_model(*model, options);
  auto ddp = std::make_shared<Ddp<Model>>(model, context(), options.ddp);
  internal::keep_model(model, ddp, options);
  return ddp;
}

}  // namespace dtrain::train

#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trainer/train/context.hpp"

namespace dtrain::train {

class GradientShards;

// Which parameters' gradients are sent together, in the order in which they are sent; by name.
using BucketLayout = std::vector<std::vector<std::string>>;

// How gradients travel. The halves cost precision and save bytes: for networks, hardly for memory
// that ranks share. They are averaged over all ranks of the group, also when some have no more
// batches (Join).
enum class GradientType : std::uint8_t { as_it_is, fp16, bf16 };

struct DdpOptions {
  std::int64_t bucket_bytes = 25 << 20;
  std::int64_t first_bucket_bytes = 1 << 20;
  bool gradient_as_bucket_view = true;  // gradients live in the buckets: one copy less
  // Walk the graph of each step for parameters without a gradient. Without it, and without
  // static_graph, a parameter that was not used is an error of the next step.
  bool find_unused_parameters = false;
  // The same parameters are used in each step, in the same order: the first one is looked at, then
  // parameters that are used several times or never cost nothing more.
  bool static_graph = false;
  // Rank 0's buffers, before each forward that is trained. Without it each rank has buffers of its
  // own, also in evaluations of the Trainer and in checkpoints (prepare_model).
  bool broadcast_buffers = true;
  GradientType gradient_type = GradientType::as_it_is;
  // Tries several bucket sizes in the first steps and keeps the fastest one. Unset: where the
  // layout cannot change a bit of the sums (shared memory, or two ranks). Not with static_graph,
  // find_unused_parameters, a given layout or `deterministic`.
  std::optional<bool> tune_buckets;
  bool deterministic = false;
  // Begin and stay with this: what bucket_layout() said before a restart. With three and more ranks
  // over Gloo or NCCL the layout decides the order of the sums, and so their last bits.
  std::optional<BucketLayout> bucket_layout;
};

// Whether sums over all ranks have the same bits whatever the buckets: CPU tensors in shared memory
// are summed in the order of the ranks, and of two summands the order is no matter. `of_cpu` is
// Context::transport(), which says nothing about tensors on a GPU: those go through NCCL.
bool layout_changes_nothing(Transport of_cpu, c10::Device device, int ranks);

// Keeps a model's replicas equal: averages gradients over all ranks while backward still runs, in
// buckets, by c10d::Reducer, as Python's DistributedDataParallel does.
//
// At construction, parameters are compared across ranks (count, shapes, types; a mismatch throws
// on every rank) and rank 0's parameters and buffers are sent to all. Each training step is
//
//     ddp.prepare_forward();  output = ddp.prepare_backward(…model's forward…);
//     loss(output).backward();  optimizer.step();  optimizer.zero_grad();
//
// Ddp<Module> below does the first line. A forward without gradients (torch::NoGradGuard) does no
// communication, so ranks may evaluate different numbers of batches. With one rank nothing is done.
//
// Do not call torch::optim's zero_grad with gradient_as_bucket_view: LibTorch 2.11 throws on
// views ("Can't detach views in-place"). train::zero_grad (optimizer.hpp) is right. The context
// must outlive this object; one thread uses both.
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module, Context& context,
                          DdpOptions options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  void prepare_forward();
  // Takes forward's outputs and returns what the loss must be made of: with static_graph and with
  // find_unused_parameters they are not the same tensors.
  [[nodiscard]] std::vector<at::Tensor> prepare_backward(std::vector<at::Tensor> outputs);

  // Gives every rank rank 0's buffers (the running statistics of batch norm): before an
  // evaluation that all ranks share. Collective.
  void sync_buffers();

  // While one of these lives, backward adds to this rank's gradients and sends nothing; the first
  // backward after it sends the sum.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // Lets ranks have different numbers of batches:
  //
  //     DistributedDataParallel::Join join(ddp);
  //     while (batch) { … ddp(…) … step(); }
  //     join.finish(step);
  //
  // A rank that has no more batches takes part in the steps of the others: its gradients are zero,
  // the average is over those that still have batches, and after each such step it has the same
  // gradients as they, and `step` is called, in which the program does what it does after a
  // backward (clip, optimizer, schedule, zero_grad). What it has gathered inside of no_sync and not
  // yet sent is sent with the first of them. So parameters and optimizer states stay equal
  // on all ranks. finish() returns on all ranks when none has a batch; buffers are then those of
  // the rank that went on longest. It costs one small all-reduce a step.
  class Join {
   public:
    explicit Join(DistributedDataParallel& ddp);
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;

    void finish(const std::function<void()>& step);

   private:
    DistributedDataParallel& ddp_;
  };

  // The layout that is used now. Before the first backward has shown the order of the gradients,
  // and with find_unused_parameters, it is made from the order of the parameters.
  BucketLayout bucket_layout() const;
  // What a checkpoint must hold for a bit-exact resume: the layout that the next step will have.
  // Empty where the layout cannot change a bit (one or two ranks, or shared memory), and before
  // the first backward. Call it between steps.
  BucketLayout layout_to_keep();
  // From the next step on, and for good. Throws Error if it is not of this model. For a resume.
  void use_layout(const BucketLayout& layout);
  // Still trying bucket sizes: times of steps say little yet.
  bool tuning() const;

  // From the next step on each rank gets the averages of its own part only (ZeroOptimizer calls
  // this). False, and nothing changes, where all gradients must be on all ranks: with
  // find_unused_parameters, static_graph, a gradient_type, or one rank; and for shards that free
  // buckets without gradient_as_bucket_view.
  bool shard_gradients(std::shared_ptr<GradientShards> shards);
  // Bytes of buckets that held memory at one time, at most, where shards free them; else of all.
  std::int64_t peak_bucket_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// A model whose calls are prepared for DDP:
//
//     Ddp ddp(model.ptr(), context);
//     auto loss = cross_entropy(ddp(images), labels);
//
// Its forward returns a tensor, a vector of them, or a tuple of them.
template <typename Module>
class Ddp : public DistributedDataParallel {
 public:
  Ddp(std::shared_ptr<Module> module, Context& context, DdpOptions options = {})
      : DistributedDataParallel(module, context, std::move(options)), module_(std::move(module)) {}

  Module& module() { return *module_; }
  const std::shared_ptr<Module>& module_ptr() const { return module_; }

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    prepare_forward();
    return through(module_->forward(std::forward<Inputs>(inputs)...));
  }

 private:
  at::Tensor through(at::Tensor output) { return prepare_backward({std::move(output)})[0]; }
  std::vector<at::Tensor> through(std::vector<at::Tensor> outputs) {
    return prepare_backward(std::move(outputs));
  }
  template <typename... Tensors>
  std::tuple<Tensors...> through(std::tuple<Tensors...> outputs) {
    std::vector<at::Tensor> list =
        std::apply([](auto&... each) { return std::vector<at::Tensor>{each...}; }, outputs);
    list = prepare_backward(std::move(list));
    std::size_t next = 0;
    std::apply([&](auto&... each) { ((each = list[next++]), ...); }, outputs);
    return outputs;
  }

  std::shared_ptr<Module> module_;
};

}  // namespace dtrain::train

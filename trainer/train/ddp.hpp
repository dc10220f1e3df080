#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "trainer/train/context.hpp"

namespace dtrain::train {

struct DdpOptions {
  std::int64_t bucket_bytes = 25 << 20;
  std::int64_t first_bucket_bytes = 1 << 20;
  bool gradient_as_bucket_view = true;  // gradients live in the buckets: one copy less
  bool find_unused_parameters = false;  // walk the graph for parameters without a gradient
  bool broadcast_buffers = true;        // rank 0's buffers, before each forward that is trained
};

// Keeps a model's replicas equal: averages gradients over all ranks while backward still runs, in
// buckets, by c10d::Reducer, as Python's DistributedDataParallel does.
//
// At construction, parameters are compared across ranks (count, shapes, types; a mismatch throws
// on every rank) and rank 0's parameters and buffers are sent to all. Each training step is
//
//     ddp.prepare_forward();  loss = …model's forward…;  ddp.prepare_backward({output});
//     loss.backward();  optimizer.step();  optimizer.zero_grad();
//
// Ddp<Module> below does the first line. A forward without gradients (torch::NoGradGuard) does no
// communication, so ranks may evaluate different numbers of batches. With one rank nothing is done.
//
// Do not call torch::optim's zero_grad with gradient_as_bucket_view: LibTorch 2.11 throws on
// views. train::Optimizer::zero_grad, or p.mutable_grad().reset(), is right. The context must
// outlive this object; one thread uses both.
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module, Context& context,
                          DdpOptions options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  void prepare_forward();
  // `outputs` are looked at only with find_unused_parameters.
  void prepare_backward(const std::vector<at::Tensor>& outputs);

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

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A model whose calls are prepared for DDP:
//
//     Ddp ddp(model.ptr(), context);
//     auto loss = cross_entropy(ddp(images), labels);
template <typename Module>
class Ddp : public DistributedDataParallel {
 public:
  Ddp(std::shared_ptr<Module> module, Context& context, DdpOptions options = {})
      : DistributedDataParallel(module, context, options), module_(std::move(module)) {}

  Module& module() { return *module_; }

  template <typename... Inputs>
  at::Tensor operator()(Inputs&&... inputs) {
    prepare_forward();
    at::Tensor output = module_->forward(std::forward<Inputs>(inputs)...);
    prepare_backward({output});
    return output;
  }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace dtrain::train

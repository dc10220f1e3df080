#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "trainer/train/context.hpp"

namespace dtrain::train {

// Batch norm of inputs [batch, channels, …] with torch::nn::BatchNorm's names, values and state,
// whose statistics can be over the batches of all ranks (SyncBatchNorm): see sync_batch_norm().
class BatchNormImpl : public torch::nn::Module {
 public:
  explicit BatchNormImpl(std::int64_t channels, double eps = 1e-5, double momentum = 0.1);
  // Collective while it is synchronized and trains: forward, and its backward. Ranks may have
  // batches of different sizes. While it trains, throws Error, on every rank whose statistics they
  // are, when a channel has one value: it has no variance.
  torch::Tensor forward(const torch::Tensor& input);

  // Null: this rank's own statistics. The context must outlive it.
  void synchronize(Context* context) { context_ = context; }

  torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  double eps_;
  double momentum_;
  Context* context_ = nullptr;
};
TORCH_MODULE(BatchNorm);

// Makes all BatchNorms of a model take their statistics over all ranks, as
// torch.nn.SyncBatchNorm.convert_sync_batchnorm does; before Ddp is made. With one rank nothing
// changes. Throws Error that names a module which is torch::nn's own batch norm: forward of those
// cannot be replaced.
void sync_batch_norm(torch::nn::Module& model, Context& context);

}  // namespace dtrain::train

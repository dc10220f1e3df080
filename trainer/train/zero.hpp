#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/group.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/gradient_shards.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

enum class ZeroStage : std::uint8_t { state = 1, gradients = 2 };

// ZeRO: each rank keeps the optimizer's state of its part of the parameters, updates that part, and
// the others copy it. Memory for the state falls by the number of ranks.
//
// With `ddp` gradients are reduced to the rank that needs them instead of to all: half of the
// traffic. A rank then has its part's averages only, in stepped(); grad() of a parameter is a
// placeholder full of NaN (gradient_shards.hpp). Clip with the functions over an optimizer. Stage 2
// lets the buckets of gradients go as well: what is left of them is the part, and the bucket or two
// that backward works on. Inside of no_sync each rank has all of its gradients, as with DDP.
//
// The weights are bit for bit those of the optimizer inside, unsharded, under DDP with the same
// buckets; over NCCL, up to the order of its sums. It says how finely it can be shared out
// (Optimizer::updates_apart, updates_elementwise).
//
// A checkpoint has whole tensors by the parameters' names, each in one rank's shard, so that any
// number of ranks, and the optimizer without this, goes on from it.
class ZeroOptimizer final : public Optimizer {
 public:
  // Collective. The parameters stay where they are, and must from now on. Throws Error if the
  // optimizer's updates need other parameters. The context must outlive it.
  //
  // Stage 1 where `ddp` cannot shard gradients (DistributedDataParallel::shard_gradients), and
  // without it: gradients are whole on every rank. Stage 2 is an Error then.
  ZeroOptimizer(std::shared_ptr<Optimizer> inside, Context& context,
                DistributedDataParallel* ddp = nullptr, ZeroStage stage = ZeroStage::state);

  void step() override;  // collective
  void zero_grad() override;
  const std::vector<NamedParameter>& stepped() override;
  double gradient_norm() override;

  double momentum() const override { return inside_->momentum(); }
  void set_momentum(double momentum) override { inside_->set_momentum(momentum); }
  // Whole tensors, made for the call: those of the parameters of which this rank has the first
  // piece. Collective.
  std::map<std::string, at::Tensor> state() const override;
  // Takes its own from the state of all.
  void load_state(const std::map<std::string, at::Tensor>& state) override;
  std::map<std::string, at::Tensor> own_state() const override { return inside_->state(); }
  void load_own_state(const std::map<std::string, at::Tensor>& state) override {
    inside_->load_state(state);
  }
  bool state_is_sharded() const override { return true; }
  std::string kind() const override { return inside_->kind(); }
  std::map<std::string, double> numbers() const override;

  bool gradients_are_sharded() const { return shards_ != nullptr; }

 private:
  struct StateTensor {  // of the unsharded optimizer
    std::size_t parameter;
    bool like_parameter;  // else a counter
    at::ScalarType type;
    std::vector<std::int64_t> sizes;
  };
  void note_places();
  void check_places() const;
  void gather();

  std::shared_ptr<Optimizer> inside_;
  Context& context_;
  ShardPlan plan_;
  std::map<std::string, StateTensor> states_;
  std::vector<at::Tensor> own_;             // this rank's piece of each parameter, or undefined
  std::shared_ptr<GradientShards> shards_;  // null: gradients are whole
  std::vector<const void*> places_;         // of the parameters
  std::vector<comm::Parts> of_rank_;        // its pieces there; empty: not for a SharedGroup
};

}  // namespace dtrain::train

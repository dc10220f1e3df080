#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// ZeRO, stage 1: each rank keeps the optimizer's state of some of the parameters, updates those,
// and sends them to the others. Memory for the state falls by the number of ranks; the weights are
// bit for bit those of the optimizer inside, unsharded. Gradients are whole on every rank, so that
// clipping is as without it.
//
// A checkpoint has each rank's part in its own shard, by the parameters' names, so that any number
// of ranks, and the optimizer without this, goes on from it.
class ZeroOptimizer final : public Optimizer {
 public:
  // Throws Error if the optimizer's updates need other parameters (Optimizer::updates_apart). The
  // context must outlive it.
  ZeroOptimizer(std::shared_ptr<Optimizer> inside, Context& context);

  void step() override;  // collective
  double momentum() const override { return inside_->momentum(); }
  void set_momentum(double momentum) override { inside_->set_momentum(momentum); }
  std::map<std::string, at::Tensor> state() const override { return inside_->state(); }
  // Takes its own from the state of all.
  void load_state(const std::map<std::string, at::Tensor>& state) override;
  bool state_is_sharded() const override { return true; }
  std::string kind() const override { return inside_->kind(); }
  std::map<std::string, double> numbers() const override;

  // Which rank keeps each parameter: the largest first, each to who has the least.
  static std::map<std::string, int> share_out(const std::vector<NamedParameter>& parameters,
                                              int ranks);

 private:
  std::shared_ptr<Optimizer> inside_;
  Context& context_;
  std::vector<std::vector<at::Tensor>> of_rank_;
};

}  // namespace dtrain::train

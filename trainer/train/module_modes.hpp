#pragma once

#include <torch/nn/module.h>

#include <vector>

namespace dtrain::train {

// Which parts of a module train, to be put back after an evaluation: those that a program has
// frozen by eval() stay as they are.
class ModuleModes {
 public:
  explicit ModuleModes(const torch::nn::Module& module) {
    for (const auto& part : module.modules()) modes_.push_back(part->is_training());
  }
  // The parts are still the same.
  void restore(const torch::nn::Module& module) const {
    // train() reaches all parts below: from the top down each has the last word about its own. A
    // part with two parents is listed at the first one, so that the second may undo it once.
    for (int round = 0; round < 2; ++round) {
      std::size_t next = 0;
      for (const auto& part : module.modules()) {
        const bool mode = modes_.at(next++);
        if (part->is_training() != mode) part->train(mode);
      }
    }
  }

 private:
  std::vector<bool> modes_;
};

}  // namespace dtrain::train

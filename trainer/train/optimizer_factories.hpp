#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <utility>
#include <vector>

#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// What an optimizer trains: all parameters of a model that need a gradient, some of them, or groups
// of them (decay_groups).
class TrainedParameters {
 public:
  TrainedParameters(const torch::nn::Module& module)  // NOLINT: for calls
      : TrainedParameters(named_parameters(module)) {}
  template <typename Impl>
  TrainedParameters(const torch::nn::ModuleHolder<Impl>& module)  // NOLINT
      : TrainedParameters(*module) {}
  TrainedParameters(std::vector<NamedParameter> parameters)  // NOLINT
      : groups(one_group(std::move(parameters))) {}
  TrainedParameters(std::vector<ParameterGroup> its) : groups(std::move(its)) {}  // NOLINT

  std::vector<ParameterGroup> groups;
};

// As torch.optim's constructors: `adam(*net, {.lr = 1e-3})`.
inline std::shared_ptr<Adam> adam(TrainedParameters of, AdamOptions options = {}) {
  return std::make_shared<Adam>(std::move(of.groups), options);
}
inline std::shared_ptr<AdamW> adamw(TrainedParameters of, AdamWOptions options = {}) {
  return std::make_shared<AdamW>(std::move(of.groups), options);
}
inline std::shared_ptr<Sgd> sgd(TrainedParameters of, SgdOptions options = {}) {
  return std::make_shared<Sgd>(std::move(of.groups), options);
}
inline std::shared_ptr<RmsProp> rmsprop(TrainedParameters of, RmsPropOptions options = {}) {
  return std::make_shared<RmsProp>(std::move(of.groups), options);
}
inline std::shared_ptr<Adagrad> adagrad(TrainedParameters of, AdagradOptions options = {}) {
  return std::make_shared<Adagrad>(std::move(of.groups), options);
}

}  // namespace dtrain::train

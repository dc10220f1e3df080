#include "trainer/train/optimizer.hpp"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <unordered_set>

#include "trainer/core/error.hpp"
#include "trainer/train/gradients.hpp"

namespace dtrain::train {

std::vector<NamedParameter> named_parameters(const torch::nn::Module& module,
                                             const std::string& prefix) {
  const std::string before = prefix.empty() ? "" : prefix + ".";
  std::vector<NamedParameter> parameters;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    parameters.push_back({before + item.key(), item.value()});
  }
  return parameters;
}

void zero_grad(torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

std::vector<ParameterGroup> one_group(std::vector<NamedParameter> parameters) {
  std::vector<ParameterGroup> groups(1);
  groups[0].parameters = std::move(parameters);
  return groups;
}

std::vector<ParameterGroup> decay_groups(const torch::nn::Module& module,
                                         const std::string& prefix) {
  ParameterGroup decay;
  ParameterGroup no_decay;
  no_decay.weight_decay = 0;
  for (NamedParameter& parameter : named_parameters(module, prefix)) {
    (parameter.tensor.dim() >= 2 ? decay : no_decay).parameters.push_back(std::move(parameter));
  }
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&decay, &no_decay}) {
    if (!group->parameters.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups) {
  std::unordered_set<c10::TensorImpl*> seen;
  std::unordered_set<std::string> names;
  for (ParameterGroup& group : groups) {
    const std::size_t begin = parameters_.size();
    for (NamedParameter& parameter : group.parameters) {
      if (!seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
        throw Error("optimizer: parameter '" + parameter.name + "' is given twice");
      }
      if (!names.insert(parameter.name).second) {
        throw Error("optimizer: two parameters are called '" + parameter.name +
                    "', and their state is kept by name: take the names of the whole model, or "
                    "give those of each part a prefix (named_parameters(part, \"encoder\"))");
      }
      parameters_.push_back(std::move(parameter));
    }
    groups_.push_back({begin, parameters_.size(), group.lr_scale, group.weight_decay});
  }
  if (parameters_.empty()) throw Error("optimizer: there are no parameters to train");
}

void Optimizer::zero_grad() {
  for (NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  std::map<std::string, at::Tensor> state;
  for (const Slot& slot : slots_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      state.emplace(parameters_[i].name + "/" + slot.key, slot.tensors[i]);
    }
  }
  return state;
}

void Optimizer::load_state(const std::map<std::string, at::Tensor>& state) {
  const c10::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> mine = this->state();
  for (const auto& [key, tensor] : mine) {
    const auto found = state.find(key);
    if (found == state.end()) throw Error("optimizer state: '" + key + "' is missing");
    if (found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      throw Error("optimizer state: '" + key + "' has another shape or type");
    }
  }
  for (const auto& [key, tensor] : state) {
    if (!mine.contains(key)) throw Error("optimizer state: '" + key + "' is not known here");
  }
  for (const auto& [key, tensor] : mine) tensor.copy_(state.at(key));
}

void Optimizer::load_numbers(const std::map<std::string, double>& numbers) {
  const auto found = numbers.find("lr");
  if (found == numbers.end()) throw Error("optimizer state: its learning rate is missing");
  set_lr(found->second);
}

at::Tensor elements_of(const at::Tensor& tensor, const ElementRange& range) {
  if (range.length == tensor.numel()) return tensor;
  return tensor.as_strided({range.length}, {1}, tensor.storage_offset() + range.begin);
}

double Optimizer::gradient_norm() {
  return train::gradient_norm(parameters_);
}

void Optimizer::keep_only(
    const std::function<std::optional<ElementRange>(const std::string& name)>& range_of) {
  std::vector<NamedParameter> parameters;
  std::vector<Slot> slots;
  for (const Slot& slot : slots_) slots.push_back({slot.key, {}});
  for (Group& group : groups_) {
    const std::size_t begin = parameters.size();
    for (std::size_t i = group.begin; i < group.end; ++i) {
      const at::Tensor whole = parameters_[i].tensor.detach();
      const std::optional<ElementRange> range = range_of(parameters_[i].name);
      if (!range) continue;
      parameters.push_back({parameters_[i].name, elements_of(whole, *range)});
      const bool is_cut = range->length != whole.numel();
      for (std::size_t s = 0; s < slots.size(); ++s) {
        const at::Tensor& state = slots_[s].tensors[i];
        const bool like = state.sizes() == whole.sizes();  // not a counter
        slots[s].tensors.push_back(is_cut && like ? elements_of(state, *range).clone() : state);
      }
    }
    group.begin = begin;
    group.end = parameters.size();
  }
  parameters_ = std::move(parameters);
  slots_ = std::move(slots);
}

Optimizer::Active Optimizer::active(const Group& group) const {
  Active active;
  active.slots.resize(slots_.size());
  for (std::size_t i = group.begin; i < group.end; ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined()) continue;
    active.parameters.push_back(parameters_[i].tensor);
    active.gradients.push_back(gradient);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      active.slots[s].push_back(slots_[s].tensors[i]);
    }
  }
  return active;
}

std::size_t Optimizer::add_slot(const std::string& key) {
  Slot slot{key, {}};
  const c10::NoGradGuard no_grad;
  for (const NamedParameter& p : parameters_) slot.tensors.push_back(at::zeros_like(p.tensor));
  slots_.push_back(std::move(slot));
  return slots_.size() - 1;
}

std::size_t Optimizer::add_step_counter() {
  Slot slot{"step", {}};
  for (const NamedParameter& p : parameters_) {
    slot.tensors.push_back(
        at::zeros({}, p.tensor.options().dtype(at::kFloat).requires_grad(false)));
  }
  slots_.push_back(std::move(slot));
  return slots_.size() - 1;
}

Adam::Adam(std::vector<ParameterGroup> groups, AdamOptions options, bool decoupled)
    : Optimizer(std::move(groups)), options_(options), decoupled_(decoupled) {
  lr_ = options.lr;
  add_step_counter();
  add_slot("exp_avg");
  add_slot("exp_avg_sq");
  if (options.amsgrad) add_slot("max_exp_avg_sq");
}

void Adam::step() {
  const c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    Active a = active(group);
    if (a.parameters.empty()) continue;
    const std::vector<at::Tensor> no_maxima;
    const std::vector<at::Tensor>& maxima = options_.amsgrad ? a.slots[3] : no_maxima;
    const double lr = lr_ * group.lr_scale;
    const double decay = group.weight_decay.value_or(options_.weight_decay);
    at::_foreach_add_(a.slots[0], 1);
    if (decoupled_) {
      at::_fused_adamw_(a.parameters, a.gradients, a.slots[1], a.slots[2], maxima, a.slots[0], lr,
                        options_.beta1, options_.beta2, decay, options_.eps, options_.amsgrad,
                        /*maximize=*/false);
    } else {
      at::_fused_adam_(a.parameters, a.gradients, a.slots[1], a.slots[2], maxima, a.slots[0], lr,
                       options_.beta1, options_.beta2, decay, options_.eps, options_.amsgrad,
                       /*maximize=*/false);
    }
  }
}

std::map<std::string, double> Adam::numbers() const {
  return {{"lr", lr_},
          {"beta1", options_.beta1},
          {"beta2", options_.beta2},
          {"eps", options_.eps},
          {"weight_decay", options_.weight_decay},
          {"amsgrad", options_.amsgrad ? 1.0 : 0.0}};
}

Sgd::Sgd(std::vector<ParameterGroup> groups, SgdOptions options)
    : Optimizer(std::move(groups)), options_(options) {
  lr_ = options.lr;
  if (options.nesterov && (options.momentum <= 0 || options.dampening != 0)) {
    throw Error("SGD: nesterov needs a momentum above 0 and no dampening");
  }
  if (options.momentum != 0) {
    add_slot("momentum_buffer");
    add_step_counter();
  }
}

void Sgd::set_momentum(double momentum) {
  if (slots_.empty()) throw Error("SGD was made without momentum, which cannot be given later");
  options_.momentum = momentum;
}

void Sgd::step() {
  const c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    Active a = active(group);
    if (a.parameters.empty()) continue;
    const double lr = lr_ * group.lr_scale;
    const double decay = group.weight_decay.value_or(options_.weight_decay);
    if (slots_.empty()) {
      // The fused operation wants a list of buffers even when it does not use them.
      for (std::size_t i = 0; i < a.parameters.size(); ++i) {
        at::Tensor step = a.gradients[i];
        if (decay != 0) step = step.add(a.parameters[i], decay);
        a.parameters[i].add_(step, -lr);
      }
      continue;
    }
    // A parameter's first step sets its buffer to the gradient, without dampening: the fused
    // operation takes that as one flag for all, so the two kinds go apart.
    std::vector<at::Tensor> parameters[2];
    std::vector<at::Tensor> gradients[2];
    std::vector<at::Tensor> buffers[2];
    for (std::size_t i = 0; i < a.parameters.size(); ++i) {
      const std::size_t first = a.slots[1][i].item<float>() == 0 ? 1 : 0;
      parameters[first].push_back(a.parameters[i]);
      gradients[first].push_back(a.gradients[i]);
      buffers[first].push_back(a.slots[0][i]);
    }
    for (std::size_t first = 0; first < 2; ++first) {
      if (parameters[first].empty()) continue;
      at::_fused_sgd_(parameters[first], gradients[first], buffers[first], decay, options_.momentum,
                      lr, options_.dampening, options_.nesterov,
                      /*maximize=*/false, /*is_first_step=*/first == 1);
    }
    at::_foreach_add_(a.slots[1], 1);
  }
}

std::map<std::string, double> Sgd::numbers() const {
  return {{"lr", lr_},
          {"momentum", options_.momentum},
          {"dampening", options_.dampening},
          {"weight_decay", options_.weight_decay},
          {"nesterov", options_.nesterov ? 1.0 : 0.0}};
}

}  // namespace dtrain::train

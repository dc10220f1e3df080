// RMSprop and Adagrad.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adagrad.h>
#include <c10/core/GradMode.h>

#include "trainer/core/error.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

RmsProp::RmsProp(std::vector<ParameterGroup> groups, RmsPropOptions options)
    : Optimizer(std::move(groups)), options_(options) {
  lr_ = options.lr;
  add_step_counter();
  add_slot("square_avg");
  if (options.momentum > 0) momentum_buffer_ = add_slot("momentum_buffer");
  if (options.centered) gradient_average_ = add_slot("grad_avg");
}

void RmsProp::set_momentum(double momentum) {
  if (momentum_buffer_ == 0) {
    throw Error("RMSprop was made without momentum, which cannot be given later");
  }
  options_.momentum = momentum;
}

void RmsProp::step() {
  const c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    Active a = active(group);
    if (a.parameters.empty()) continue;
    const double lr = lr_ * group.lr_scale;
    const double decay = group.weight_decay.value_or(options_.weight_decay);
    std::vector<at::Tensor> gradients = a.gradients;
    if (decay != 0) gradients = at::_foreach_add(gradients, a.parameters, decay);
    at::_foreach_add_(a.slots[0], 1);
    at::_foreach_mul_(a.slots[1], options_.alpha);
    at::_foreach_addcmul_(a.slots[1], gradients, gradients, 1 - options_.alpha);
    std::vector<at::Tensor> average;
    if (options_.centered) {
      const std::vector<at::Tensor>& mean = a.slots[gradient_average_];
      at::_foreach_lerp_(mean, gradients, 1 - options_.alpha);
      average = at::_foreach_addcmul(a.slots[1], mean, mean, -1);
      at::_foreach_sqrt_(average);
    } else {
      average = at::_foreach_sqrt(a.slots[1]);
    }
    at::_foreach_add_(average, options_.eps);
    if (momentum_buffer_ != 0) {
      const std::vector<at::Tensor>& buffers = a.slots[momentum_buffer_];
      at::_foreach_mul_(buffers, options_.momentum);
      at::_foreach_addcdiv_(buffers, gradients, average);
      at::_foreach_add_(a.parameters, buffers, -lr);
    } else {
      at::_foreach_addcdiv_(a.parameters, gradients, average, -lr);
    }
  }
}

std::map<std::string, double> RmsProp::numbers() const {
  return {{"lr", lr_},
          {"alpha", options_.alpha},
          {"eps", options_.eps},
          {"weight_decay", options_.weight_decay},
          {"momentum", options_.momentum},
          {"centered", options_.centered ? 1.0 : 0.0}};
}

Adagrad::Adagrad(std::vector<ParameterGroup> groups, AdagradOptions options)
    : Optimizer(std::move(groups)), options_(options) {
  lr_ = options.lr;
  add_step_counter();
  const std::size_t sum = add_slot("sum");
  for (at::Tensor& tensor : slots_[sum].tensors) tensor.fill_(options.initial_accumulator_value);
}

void Adagrad::set_momentum(double /*momentum*/) {
  throw Error("Adagrad has no momentum");
}

void Adagrad::step() {
  const c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    Active a = active(group);
    if (a.parameters.empty()) continue;
    at::_foreach_add_(a.slots[0], 1);
    at::_fused_adagrad_(a.parameters, a.gradients, a.slots[1], a.slots[0], lr_ * group.lr_scale,
                        options_.lr_decay, group.weight_decay.value_or(options_.weight_decay),
                        options_.eps, /*maximize=*/false);
  }
}

std::map<std::string, double> Adagrad::numbers() const {
  return {{"lr", lr_},
          {"lr_decay", options_.lr_decay},
          {"eps", options_.eps},
          {"weight_decay", options_.weight_decay},
          {"initial_accumulator_value", options_.initial_accumulator_value}};
}

}  // namespace dtrain::train

#include "trainer/train/precision.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"
#include "trainer/train/processor.hpp"

namespace dtrain::train {

Precision precision_of(const std::string& name) {
  if (name == "32" || name == "fp32" || name == "32-true") return Precision::fp32;
  if (name == "bf16" || name == "bf16-mixed") return Precision::bf16;
  if (name == "16" || name == "fp16" || name == "16-mixed") return Precision::fp16;
  throw Error("precision '" + name + "' is not known; there are 32, bf16 and 16");
}

Autocast::Autocast(c10::Device device, Precision precision)
    : type_(device.type()), on_(precision != Precision::fp32) {
  if (!on_) return;
  if (device.is_cpu()) tell_of_processor();
  was_on_ = at::autocast::is_autocast_enabled(type_);
  dtype_before_ = at::autocast::get_autocast_dtype(type_);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::set_autocast_dtype(type_, precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!on_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_on_);
  at::autocast::set_autocast_dtype(type_, dtype_before_);
}

GradScaler::GradScaler(Context& context, Options options)
    : context_(context), options_(options), scale_(options.enabled ? options.init_scale : 1) {}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  if (unscaled_) give_up_step();
  return loss * scale_;
}

void GradScaler::give_up_step() {
  for (const at::Tensor& parameter : unscaled_parameters_) {
    const at::Tensor& gradient = parameter.grad();
    // Zeroed in place is dropped too; what is not finite is not zero.
    if (!gradient.defined() || !gradient.ne(0).any().item<bool>()) continue;
    throw Error(
        "scaler: the gradients are unscaled already: before the next backward() comes the step, "
        "or zero_grad()");
  }
  unscaled_ = false;
  if (found_inf()) back_off();
}

bool GradScaler::found_inf() const {
  return found_inf_.item<float>() != 0;
}

void GradScaler::back_off() {
  scale_ *= options_.backoff_factor;
  good_steps_ = 0;
  ++skipped_;
}

void GradScaler::unscale(Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (unscaled_) throw Error("scaler: the gradients of this step are unscaled already");
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  unscaled_parameters_.clear();
  for (const NamedParameter& parameter : optimizer.stepped()) {
    if (!parameter.tensor.grad().defined()) continue;
    gradients.push_back(parameter.tensor.grad());
    unscaled_parameters_.push_back(parameter.tensor);
  }
  if (gradients.empty() && !optimizer.state_is_sharded()) {
    throw Error("scaler: no parameter has a gradient");
  }
  const at::TensorOptions place = at::TensorOptions(at::kFloat).device(context_.device());
  found_inf_ = at::zeros({1}, place);
  const at::Tensor inverse = at::full({1}, 1 / scale_, place);
  if (!gradients.empty()) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, inverse);
  }
  context_.all_reduce_sum(found_inf_);
  unscaled_ = true;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (!unscaled_) unscale(optimizer);
  unscaled_ = false;
  if (found_inf()) {
    back_off();
    return false;
  }
  optimizer.step();
  if (++good_steps_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    good_steps_ = 0;
  }
  return true;
}

nlohmann::json GradScaler::state() const {
  return {{"scale", scale_}, {"good_steps", good_steps_}, {"skipped", skipped_}};
}

void GradScaler::load_state(const nlohmann::json& state) {
  scale_ = state.at("scale").get<double>();
  good_steps_ = state.at("good_steps").get<std::int64_t>();
  skipped_ = state.at("skipped").get<std::int64_t>();
}

}  // namespace dtrain::train

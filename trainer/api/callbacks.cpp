#include "trainer/api/callbacks.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstdio>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/api/functions.hpp"
#include "trainer/api/trainer.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

std::string text_of(std::optional<double> value) {
  if (!value) return "none";
  if (std::isnan(*value)) return "nan";  // whatever its sign
  char text[32];
  std::snprintf(text, sizeof text, "%g", *value);
  return text;
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(Options options) : options_(std::move(options)) {
  if (options_.save_top_k == -1) options_.save_top_k.reset();
  if (options_.save_top_k && *options_.save_top_k < 1) {
    throw Error("ModelCheckpoint: save_top_k is -1 (all) or at least 1");
  }
}

void EarlyStopping::look(Trainer& trainer) {
  const Metrics& metrics = trainer.callback_metrics();
  const auto found = metrics.find(options_.monitor);
  if (found == metrics.end()) {
    throw Error("early stopping: no metric '" + options_.monitor +
                "'; there are: " + names_of(metrics));
  }
  const double value = found->second;
  const bool lower = options_.mode == Best::min;
  const bool better =
      !std::isnan(value) && (!best_ || (lower ? value < *best_ - options_.min_delta
                                              : value > *best_ + options_.min_delta));
  if (better) {
    best_ = value;
    waited_ = 0;
  } else if (++waited_ >= options_.patience) {
    session().say("early stopping: " + options_.monitor + " has not become better " +
                  std::to_string(waited_) + " times in a row: the best was " + text_of(best_) +
                  ", the newest is " + text_of(value));
    trainer.stop();
  }
}

void EarlyStopping::on_validation_end(Trainer& trainer, Module& /*module*/) {
  look(trainer);
}

void EarlyStopping::on_train_epoch_end(Trainer& trainer, Module& /*module*/) {
  if (!trainer.validates()) look(trainer);
}

nlohmann::json EarlyStopping::state() const {
  nlohmann::json state{{"waited", waited_}};
  if (best_) state["best"] = metrics_to_json({{"best", *best_}});  // it may be infinite
  return state;
}

void EarlyStopping::load_state(const nlohmann::json& state) {
  waited_ = state.at("waited").get<std::int64_t>();
  best_.reset();
  if (!state.contains("best")) return;
  const double best = metrics_from_json(state.at("best")).at("best");
  if (!std::isnan(best)) best_ = best;  // earlier versions took one that is no number
}

Metrics LearningRateMonitor::step_metrics(Trainer& trainer) {
  Metrics metrics;
  const std::vector<std::string>& names = trainer.optimizer_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Optimizer& optimizer = *trainer.optimizers()[i];
    const std::string suffix = names[i].empty() ? "" : "-" + names[i];
    metrics["lr" + suffix] = optimizer.lr();
    if (optimizer.momentum() != 0) metrics["momentum" + suffix] = optimizer.momentum();
  }
  return metrics;
}

Metrics ThroughputMonitor::step_metrics(Trainer& trainer) {
  Metrics metrics = trainer.times().take();
  const auto found = metrics.find("samples_per_second");
  if (found == metrics.end()) return metrics;
  if (options_.flops_per_sample > 0 && options_.peak_flops > 0) {
    metrics["mfu"] = found->second * options_.flops_per_sample / options_.peak_flops;
  }
  found->second *= context().world_size();
  return metrics;
}

void EmaWeights::on_fit_start(Trainer& /*trainer*/, Module& module) {
  std::unordered_map<c10::TensorImpl*, at::Tensor> averages;
  std::vector<std::pair<at::Tensor, at::Tensor>> of_parameters;
  for (const auto& item : module.named_parameters()) {
    at::Tensor& average = averages[item.value().unsafeGetTensorImpl()];
    if (!average.defined()) {
      average = item.value().detach().clone();
      names_.push_back(item.key());
      of_parameters.emplace_back(average, item.value());
    }
    average_.emplace(item.key(), average);
  }
  // The tensors themselves, which outlive this callback if the session does.
  session().keep_tensors(
      "ema", [average = average_] { return average; }, /*alike=*/true,
      [of_parameters] {
        const c10::NoGradGuard no_grad;
        for (const auto& [average, parameter] : of_parameters) average.copy_(parameter);
      });
}

void EmaWeights::on_step_end(Trainer& /*trainer*/, Module& module) {
  const c10::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  for (const std::string& name : names_) {
    average_.at(name).lerp_(parameters[name], 1 - decay_);
  }
}

void EmaWeights::swap(Module& module) {
  const c10::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  for (const std::string& name : names_) {
    at::Tensor& average = average_.at(name);
    const at::Tensor& parameter = parameters[name];
    const at::Tensor weights = parameter.detach().clone();
    parameter.copy_(average);
    average.copy_(weights);
  }
}

void EmaWeights::on_validation_start(Trainer& /*trainer*/, Module& module) {
  swap(module);
}

void EmaWeights::on_validation_end(Trainer& /*trainer*/, Module& module) {
  swap(module);
}

void EmaWeights::on_validation_broken_off(Trainer& /*trainer*/, Module& module) {
  swap(module);
}

}  // namespace dtrain::train

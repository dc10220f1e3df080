// The optimizers of a Trainer's module, how their rates move, and optimizing by hand.
#include <algorithm>
#include <unordered_set>

#include "trainer/api/trainer_state.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train {

void Trainer::State::begin_optimizers() {
  const Optimizers configured = module->configure_optimizers();
  if (automatic && configured.all().size() > 1) {
    throw Error(
        "trainer: configure_optimizers gave several optimizers, and which of them a batch's loss "
        "is "
        "for only the module can know: override automatic_optimization() with false, and optimize "
        "by hand in training_step");
  }
  for (const OptimizerConfig& config : configured.all()) {
    if (!config.optimizer) throw Error("trainer: configure_optimizers gave no optimizer");
    optimizers.push_back(
        prepare_optimizer(config.optimizer, strategy_of(options.strategy), config.name));
    optimizer_names.push_back(config.name);
    const std::string kept_as = config.name.empty() ? "scheduler" : "scheduler/" + config.name;
    Moving& its = moving.emplace_back();
    if (config.plateau) {
      its.how = *config.plateau;
      if (its.how.frequency < 1) throw Error("trainer: a plateau's frequency must be at least 1");
      its.plateau = prepare_scheduler(
          std::make_shared<ReduceLROnPlateau>(*optimizers.back(), its.how.options), kept_as);
    } else if (config.schedule) {
      its.scheduler = prepare_scheduler(
          std::make_shared<Scheduler>(*optimizers.back(), config.schedule, config.per), kept_as);
    }
  }
  if (optimizers.empty()) throw Error("trainer: configure_optimizers gave no optimizer");
}

// Clips, and calls what comes before a step; callbacks where there is a `trainer`. False if the
// step was left out.
bool Trainer::State::take_step(Trainer* trainer) {
  if (options.gradient_clip_val) {
    metrics["grad_norm"] = clip_gradients(*options.gradient_clip_val);
  } else {
    unscale_gradients();
  }
  Optimizer& optimizer = *optimizers.at(0);
  module->on_before_optimizer_step(optimizer);
  if (trainer != nullptr) {
    each([&](Callback& callback) {
      callback.on_before_optimizer_step(*trainer, *module, optimizer);
    });
  }
  return optimizer_step();
}

// `done`: steps or epochs; their metrics are there. Collective.
void Trainer::State::look_for_plateaus(Scheduler::Per per, std::int64_t done) {
  for (Moving& its : moving) {
    if (!its.plateau || its.how.per != per || done % its.how.frequency != 0) continue;
    const auto found = metrics.find(its.how.monitor);
    nlohmann::json value;
    if (found != metrics.end()) value = metrics_to_json({{"value", found->second}});
    value = broadcast(value);  // what is not synced differs from rank to rank: the rate must not
    if (value.is_null()) {
      throw Error("plateau: there is no metric '" + its.how.monitor + "' to go by, after " +
                  (per == Scheduler::Per::step ? "step " : "epoch ") + std::to_string(done) +
                  "; there are: " + names_of(metrics) +
                  ". Where it is logged less often, give the plateau that frequency");
    }
    its.plateau->step(metrics_from_json(value).at("value"));
  }
}

const std::vector<std::shared_ptr<Optimizer>>& Module::optimizers() const {
  return trainer().optimizers();
}

Scheduler& Module::lr_scheduler(std::size_t index) const {
  const auto& moving = trainer().state_->moving;
  if (index < moving.size() && moving[index].scheduler) return *moving[index].scheduler;
  throw Error("optimizer " + std::to_string(index) + " has no schedule");
}

ReduceLROnPlateau& Module::lr_plateau(std::size_t index) const {
  const auto& moving = trainer().state_->moving;
  if (index < moving.size() && moving[index].plateau) return *moving[index].plateau;
  throw Error("optimizer " + std::to_string(index) + " has no plateau");
}

void Module::manual_backward(const at::Tensor& loss) {
  Trainer::State& state = *trainer().state_;
  if (state.automatic) {
    throw Error("manual_backward: automatic_optimization() of the module is not false");
  }
  backward(state.ddp->prepare_backward({loss})[0]);
}

Module::ToggledOptimizer::ToggledOptimizer(const Module& module, const Optimizer& optimizer) {
  std::unordered_set<c10::TensorImpl*> own;
  for (const NamedParameter& each : optimizer.parameters()) {
    own.insert(each.tensor.unsafeGetTensorImpl());
  }
  for (const NamedParameter& each : module.trained_parameters()) {
    if (own.contains(each.tensor.unsafeGetTensorImpl())) continue;
    off_.push_back(each.tensor);
    off_.back().set_requires_grad(false);
  }
}

Module::ToggledOptimizer::~ToggledOptimizer() {
  for (const at::Tensor& each : off_) each.set_requires_grad(true);
}

}  // namespace dtrain::train

#include "trainer/train/optimizer_set.hpp"

#include <utility>
#include <vector>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

std::vector<ParameterGroup> all_of(const OptimizerSet::Named& optimizers) {
  std::vector<NamedParameter> all;
  for (const auto& [name, optimizer] : optimizers) {
    for (const NamedParameter& each : optimizer->parameters()) {
      all.push_back({name + "/" + each.name, each.tensor});
    }
  }
  return one_group(std::move(all));
}

// What is kept under each of the optimizers' names.
template <typename Value>
std::map<std::string, std::map<std::string, Value>> by_optimizer(
    const std::map<std::string, Value>& all, const OptimizerSet::Named& optimizers) {
  std::map<std::string, std::map<std::string, Value>> result;
  for (const auto& [key, value] : all) {
    const std::size_t slash = key.find('/');
    const std::string name = key.substr(0, slash);
    if (slash == std::string::npos || !optimizers.contains(name)) {
      throw Error("optimizer state: '" + key + "' is of no optimizer here");
    }
    result[name].emplace(key.substr(slash + 1), value);
  }
  return result;
}

}  // namespace

OptimizerSet::OptimizerSet(Named optimizers)
    : Optimizer(all_of(optimizers)), optimizers_(std::move(optimizers)) {
  for (const auto& [name, optimizer] : optimizers_) {
    if (name.empty() || name.find('/') != std::string::npos) {
      throw Error("optimizer: '" + name + "' cannot be a name of one of several");
    }
    if (optimizer->state_is_sharded() != state_is_sharded()) {
      throw Error("optimizers: all of a training take the same strategy, ddp or zero1");
    }
  }
}

void OptimizerSet::step() {
  throw Error("there are several optimizers: each takes its step by itself");
}

void OptimizerSet::set_momentum(double /*momentum*/) {
  throw Error("there are several optimizers: each has a momentum of its own");
}

bool OptimizerSet::state_is_sharded() const {
  return optimizers_.begin()->second->state_is_sharded();
}

std::map<std::string, at::Tensor> OptimizerSet::state() const {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, optimizer] : optimizers_) {
    for (auto& [key, tensor] : optimizer->state()) state.emplace(name + "/" + key, tensor);
  }
  return state;
}

void OptimizerSet::load_state(const std::map<std::string, at::Tensor>& state) {
  auto parts = by_optimizer(state, optimizers_);
  for (const auto& [name, optimizer] : optimizers_) optimizer->load_state(parts[name]);
}

std::string OptimizerSet::kind() const {
  std::string kind;
  for (const auto& [name, optimizer] : optimizers_) {
    kind += (kind.empty() ? "" : ", ") + name + ": " + optimizer->kind();
  }
  return kind;
}

std::map<std::string, double> OptimizerSet::numbers() const {
  std::map<std::string, double> numbers;
  for (const auto& [name, optimizer] : optimizers_) {
    for (const auto& [key, value] : optimizer->numbers()) numbers[name + "/" + key] = value;
  }
  return numbers;
}

void OptimizerSet::load_numbers(const std::map<std::string, double>& numbers) {
  auto parts = by_optimizer(numbers, optimizers_);
  for (const auto& [name, optimizer] : optimizers_) optimizer->load_numbers(parts[name]);
}

}  // namespace dtrain::train

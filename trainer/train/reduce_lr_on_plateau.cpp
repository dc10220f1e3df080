#include "trainer/train/reduce_lr_on_plateau.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"
#include "trainer/core/metrics.hpp"

namespace dtrain::train {
namespace {

using Threshold = ReduceLROnPlateauOptions::Threshold;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : LrScheduler(optimizer),
      options_(options),
      best_(options.mode == Best::min ? kInfinity : -kInfinity) {
  if (!(options.factor < 1)) throw Error("ReduceLROnPlateau: the factor must be below 1");
  if (options.patience < 0 || options.cooldown < 0) {
    throw Error("ReduceLROnPlateau: patience and cooldown must not be negative");
  }
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == Threshold::rel;
  if (options_.mode == Best::min) {
    return metric < (relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (relative ? best_ * (options_.threshold + 1) : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(double metric) {
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ <= options_.patience) return;
  const double lr = std::max(optimizer_.lr() * options_.factor, options_.min_lr);
  if (optimizer_.lr() - lr > options_.eps) optimizer_.set_lr(lr);
  cooldown_counter_ = options_.cooldown;
  num_bad_epochs_ = 0;
}

nlohmann::json ReduceLROnPlateau::describe() const {
  return {{"mode", options_.mode == Best::min ? "min" : "max"},
          {"factor", options_.factor},
          {"patience", options_.patience},
          {"threshold", options_.threshold},
          {"threshold_mode", options_.threshold_mode == Threshold::rel ? "rel" : "abs"},
          {"cooldown", options_.cooldown},
          {"min_lr", options_.min_lr},
          {"eps", options_.eps}};
}

nlohmann::json ReduceLROnPlateau::state() const {
  return {{"best", metrics_to_json({{"best", best_}})},  // it may be infinite
          {"num_bad_epochs", num_bad_epochs_},
          {"cooldown_counter", cooldown_counter_},
          {"lr", optimizer_.lr()},
          {"options", describe()}};
}

void ReduceLROnPlateau::load_state(const nlohmann::json& state) {
  try {
    if (state.at("options") != describe()) {
      throw Error("ReduceLROnPlateau: the checkpoint has " + state.at("options").dump() +
                  ", this one has " + describe().dump());
    }
    const double best = metrics_from_json(state.at("best")).at("best");
    const auto bad = state.at("num_bad_epochs").get<std::int64_t>();
    const auto cooldown = state.at("cooldown_counter").get<std::int64_t>();
    optimizer_.set_lr(state.at("lr").get<double>());
    best_ = best;
    num_bad_epochs_ = bad;
    cooldown_counter_ = cooldown;
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("ReduceLROnPlateau: not its state: ") + error.what());
  }
}

}  // namespace dtrain::train

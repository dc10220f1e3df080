#include "trainer/train/scheduler.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {

LrScheduler::LrScheduler(Optimizer& optimizer)
    : optimizer_(optimizer), unkept_(optimizer.unkept_schedulers_) {
  ++*unkept_;
}

LrScheduler::~LrScheduler() {
  if (unkept_) --*unkept_;
}

void LrScheduler::set_kept() {
  if (unkept_) --*std::exchange(unkept_, nullptr);
}

Scheduler::Scheduler(Optimizer& optimizer, SchedulePtr schedule, Per per)
    : LrScheduler(optimizer), schedule_(std::move(schedule)), per_(per), base_(optimizer.lr()) {
  if (!schedule_) throw Error("scheduler: there is no schedule");
  apply();
}

void Scheduler::after_step() {
  if (per_ != Per::step) return;
  ++done_;
  apply();
}

void Scheduler::after_epoch() {
  if (per_ != Per::epoch) return;
  ++done_;
  apply();
}

void Scheduler::apply() {
  const Rate rate = schedule_->at(base_, done_);
  optimizer_.set_lr(rate.lr);
  if (rate.momentum) optimizer_.set_momentum(*rate.momentum);
}

nlohmann::json Scheduler::state() const {
  return {{"done", done_},
          {"base", base_},
          {"per", per_ == Per::step ? "step" : "epoch"},
          {"schedule", schedule_->describe()}};
}

void Scheduler::load_state(const nlohmann::json& state) {
  load(state, nullptr);
}

void Scheduler::load_state_of_other_ranks(const nlohmann::json& state, const Warn& warn) {
  load(state, &warn);
}

void Scheduler::load(const nlohmann::json& state, const Warn* of_other_ranks) {
  const nlohmann::json mine = this->state();
  try {
    auto done = state.at("done").get<std::int64_t>();
    if (done < 0) throw Error("scheduler: " + std::to_string(done) + " steps are not possible");
    for (const std::string key : {"per", "schedule"}) {
      const nlohmann::json& saved = state.at(key);
      if (saved == mine.at(key)) continue;
      const std::string difference = "scheduler: the checkpoint has " + key + " " + saved.dump() +
                                     ", this one has " + mine.at(key).dump();
      std::optional<double> times;
      if (of_other_ranks != nullptr && per_ == Per::step && key == "schedule") {
        times = times_as_long(mine.at(key), saved);
      }
      if (!times) throw Error(difference);
      const std::int64_t there = std::llround(static_cast<double>(done) * *times);
      (*of_other_ranks)(difference + ": with this number of ranks it goes on at step " +
                        std::to_string(there) + " in place of " + std::to_string(done));
      done = there;
    }
    base_ = state.at("base").get<double>();
    done_ = done;
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("scheduler: not its state: ") + error.what());
  }
  apply();
}

}  // namespace dtrain::train

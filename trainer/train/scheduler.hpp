#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "trainer/checkpoint/store.hpp"
#include "trainer/schedule/schedule.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// What moves an optimizer's learning rate. The optimizer must outlive its last call. Not
// collective: every rank does the same by itself. Checkpoints must keep it, or a resume begins it
// anew: prepare_scheduler (trainer/api/functions.hpp) or Session::keep.
class LrScheduler {
 public:
  virtual ~LrScheduler();
  LrScheduler(const LrScheduler&) = delete;
  LrScheduler& operator=(const LrScheduler&) = delete;

  const Optimizer& optimizer() const { return optimizer_; }
  // Checkpoints keep it: see Optimizer::unkept_schedulers.
  void set_kept();
  // For the checkpoint. load_state throws Error when the state is that of another one.
  virtual nlohmann::json state() const = 0;
  virtual void load_state(const nlohmann::json& state) = 0;
  // In its place where another number of ranks has written the checkpoint.
  virtual void load_state_of_other_ranks(const nlohmann::json& state, const Warn& /*warn*/) {
    load_state(state);
  }
  // At a resume from a checkpoint that has no state of it.
  virtual void begin_anew() {}

 protected:
  explicit LrScheduler(Optimizer& optimizer);
  Optimizer& optimizer_;

 private:
  std::shared_ptr<int> unkept_;  // the optimizer's count; null when this one is kept
};

// Moves an optimizer's learning rate (and momentum, for one cycle) along a schedule. Counts steps
// or epochs; that count and the base rate are all its state.
class Scheduler final : public LrScheduler {
 public:
  enum class Per : std::uint8_t { step, epoch };

  // Sets the rate of step 0. The optimizer's rate at this moment is the schedule's base.
  Scheduler(Optimizer& optimizer, SchedulePtr schedule, Per per = Per::step);

  // After each optimizer step, and after each epoch; the one that it does not count is ignored.
  void after_step();
  void after_epoch();

  std::int64_t done() const { return done_; }
  double base() const { return base_; }

  nlohmann::json state() const override;
  // Throws Error when the schedule was another one.
  void load_state(const nlohmann::json& state) override;
  // With another number of ranks an epoch has another number of steps. Where the schedule that
  // counts them differs from the saved one in lengths alone, this one goes on at the same share of
  // its length, and warns. Else as load_state.
  void load_state_of_other_ranks(const nlohmann::json& state, const Warn& warn) override;
  // The rate of step 0 takes the place of the checkpoint's.
  void begin_anew() override { apply(); }

 private:
  void apply();
  void load(const nlohmann::json& state, const Warn* of_other_ranks);

  SchedulePtr schedule_;
  Per per_;
  double base_;
  std::int64_t done_ = 0;
};

}  // namespace dtrain::train

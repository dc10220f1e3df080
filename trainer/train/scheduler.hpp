#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "trainer/schedule/schedule.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// Moves an optimizer's learning rate (and momentum, for one cycle) along a schedule. Counts steps
// or epochs; that count and the base rate are all its state. The optimizer must outlive its last
// call. Not collective: every rank does the same by itself. Checkpoints must keep it, or a resume
// begins the schedule anew: prepare_scheduler (trainer/api/functions.hpp) or Session::keep.
class Scheduler {
 public:
  enum class Per : std::uint8_t { step, epoch };

  // Sets the rate of step 0. The optimizer's rate at this moment is the schedule's base.
  Scheduler(Optimizer& optimizer, SchedulePtr schedule, Per per = Per::step);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // After each optimizer step, and after each epoch; the one that it does not count is ignored.
  void after_step();
  void after_epoch();

  std::int64_t done() const { return done_; }
  double base() const { return base_; }
  const Optimizer& optimizer() const { return optimizer_; }

  // Checkpoints keep it: see Optimizer::unkept_schedulers.
  void set_kept();

  // For the checkpoint. load_state throws Error when the schedule was another one.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  void apply();

  Optimizer& optimizer_;
  SchedulePtr schedule_;
  Per per_;
  double base_;
  std::int64_t done_ = 0;
  std::shared_ptr<int> unkept_;  // the optimizer's count; null when this one is kept
};

}  // namespace dtrain::train

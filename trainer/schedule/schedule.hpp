#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::train {

// What a schedule wants at one point: the learning rate, and the momentum if it moves that too
// (SGD's momentum, Adam's beta1).
struct Rate {
  double lr = 0;
  std::optional<double> momentum;
};

// A learning rate as a function of the steps (or epochs) done. It has no state: `at` costs the
// same for any step, so that going on from a checkpoint needs only the number. The values are
// those of torch.optim.lr_scheduler's schedulers after as many calls of step().
class Schedule {
 public:
  virtual ~Schedule() = default;
  // `base` is the rate that the optimizer was made with; `done` counts from 0.
  virtual Rate at(double base, std::int64_t done) const = 0;
  // Its name and numbers, to tell two schedules apart. (A lambda has no numbers.)
  virtual nlohmann::json describe() const = 0;
};

using SchedulePtr = std::shared_ptr<const Schedule>;

// Each throws Error on numbers that make no sense (a length below 1, milestones that fall, …).

// base * factor(done).
SchedulePtr lambda_schedule(std::function<double(std::int64_t done)> factor);
// base * factor, which goes from `start` to `end` in `steps` and stays there. For a warm-up.
SchedulePtr linear_schedule(double start, double end, std::int64_t steps);
// base * gamma^done.
SchedulePtr exponential_schedule(double gamma);
// base * gamma for each milestone reached; one that is given twice counts twice.
SchedulePtr multi_step_schedule(std::vector<std::int64_t> milestones, double gamma = 0.1);
// From base to `min` and back, half a cosine in `steps`.
SchedulePtr cosine_schedule(std::int64_t steps, double min = 0);
// Half a cosine from base to `min` in `first` steps, then again, each time `factor` times as long.
SchedulePtr cosine_restarts_schedule(std::int64_t first, std::int64_t factor = 1, double min = 0);

struct OneCycle {
  double max_lr = 0.1;
  std::int64_t total_steps = 1;
  double pct_start = 0.3;
  bool cosine = true;  // else straight lines
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         // begins at max_lr / div_factor
  double final_div_factor = 1e4;  // ends at the beginning's / final_div_factor
  bool three_phase = false;
};
// Does not look at base. Beyond total_steps it stays at its last value (Python throws there).
SchedulePtr one_cycle_schedule(const OneCycle& cycle);

// One after the other: schedule i + 1 begins anew, from its own 0, when milestones[i] are done.
// There is one milestone less than schedules. A momentum that one of them has moved stays as it was
// at that one's last step.
SchedulePtr sequential_schedule(std::vector<SchedulePtr> schedules,
                                std::vector<std::int64_t> milestones);

// Of two schedules' descriptions that differ in their lengths alone (total_steps, steps, first,
// milestones): how many times as long the first one is. Else nothing. Throws nlohmann's exceptions
// where one is no description.
std::optional<double> times_as_long(const nlohmann::json& one, const nlohmann::json& other);

}  // namespace dtrain::train

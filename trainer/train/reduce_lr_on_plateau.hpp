#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "trainer/train/scheduler.hpp"

namespace dtrain::train {

enum class Best : std::uint8_t { min, max };

// torch.optim.lr_scheduler.ReduceLROnPlateau's arguments, and its defaults.
struct ReduceLROnPlateauOptions {
  enum class Threshold : std::uint8_t { rel, abs };
  Best mode = Best::min;
  double factor = 0.1;
  std::int64_t patience = 10;  // so many values in a row that are not better change nothing yet
  double threshold = 1e-4;     // what is better must be better by that
  Threshold threshold_mode = Threshold::rel;
  std::int64_t cooldown = 0;  // so many values after a reduction are not counted
  double min_lr = 0;
  double eps = 1e-8;  // a rate that would fall by less stays
};

// Lowers the optimizer's rate when a metric has stopped getting better, as PyTorch's. The rate is
// the optimizer's: groups have theirs from it by their lr_scale, and min_lr is its lower limit.
class ReduceLROnPlateau final : public LrScheduler {
 public:
  // Throws Error on a factor that is not below 1, and on counts below 0.
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});

  // A value of the metric: after a validation, or whenever there is one. It must be the same on all
  // ranks (all_reduce_mean), or their rates differ. One that is no number is never better.
  void step(double metric);

  double best() const { return best_; }
  std::int64_t num_bad_epochs() const { return num_bad_epochs_; }

  nlohmann::json state() const override;
  // With the rate. Throws Error when it was made with other options.
  void load_state(const nlohmann::json& state) override;

 private:
  nlohmann::json describe() const;
  bool is_better(double metric) const;

  ReduceLROnPlateauOptions options_;
  double best_;
  std::int64_t num_bad_epochs_ = 0;
  std::int64_t cooldown_counter_ = 0;
};

}  // namespace dtrain::train

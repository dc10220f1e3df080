#pragma once

#include <map>
#include <vector>

#include "launcher/tune/scheduler.hpp"

namespace dtrain::tune {

// Stops a trial whose best value is worse than the median of the others' means so far: Golovin et
// al., Google Vizier (KDD 2017), and decides as ray.tune.schedulers.MedianStoppingRule with
// hard_stop does. The others are those that came as far, ended ones too; a mean is over the reports
// from grace_period to the time of the report, and counts where it is finite.
class MedianStopping : public Scheduler {
 public:
  MedianStopping(const MedianSpec& spec, Mode mode) : Scheduler(mode), spec_(spec) {}

 protected:
  Decision decide(const Measured& report) override;

 private:
  // Trials mostly report at the same times, so the means at a time are kept in order; so many
  // times, and those further back are computed anew.
  static constexpr std::size_t kMostLevels = 256;

  struct Track {
    std::vector<double> times;  // from grace_period on
    std::vector<double> sums;   // up to each
    double best = 0;            // score
    double last = 0;            // time

    double mean(double time) const;  // NaN: no report is that early
  };
  using Level = std::vector<double>;  // finite means, in order

  Level& level(double time);

  MedianSpec spec_;
  std::map<TrialNumber, Track> tracks_;
  std::map<double, Level> levels_;
};

}  // namespace dtrain::tune

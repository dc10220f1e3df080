#pragma once

#include <map>
#include <vector>

#include "launcher/tune/scheduler.hpp"

namespace dtrain::tune {

// Stops a trial whose best value is worse than the median of the others' means so far: Golovin et
// al., Google Vizier (KDD 2017), and decides as ray.tune.schedulers.MedianStoppingRule with
// hard_stop does. The others are those that came as far, ended ones too; a mean is over the reports
// from grace_period to the time of the report, and counts where it is finite.
//
// Up to time 64 each whole time is one at which trials are compared; beyond, and for times that are
// no whole ones, there are kStepsPerDoubling from each power of two to the next, and a trial is
// compared with its first report at or behind each: so that ten thousand trials whose seconds are
// all different cost no more than those that count iterations.
class MedianStopping : public Scheduler {
 public:
  MedianStopping(const MedianSpec& spec, Mode mode) : Scheduler(mode), spec_(spec) {}

 protected:
  Decision decide(const Measured& report) override;

 private:
  static constexpr int kStepsPerDoubling = 32;
  // The means at a time are kept in order, for so many times: a trial that is behind all of them,
  // which is 65,536 times less far than the furthest, is not compared.
  static constexpr std::size_t kMostLevels = 512;

  struct Step {
    double at = 0;  // the last time to compare at, up to the report's
    double next = 0;
  };
  static Step step_of(double time);

  struct Track {
    std::vector<double> times;  // from grace_period on
    std::vector<double> sums;   // up to each
    double best = 0;            // score
    double last = 0;            // time

    double mean(double time) const;  // NaN: no report is that early
  };
  using Level = std::vector<double>;  // finite means, in order

  // Null: it is behind all that are kept.
  const Level* level(double time);

  MedianSpec spec_;
  std::map<TrialNumber, Track> tracks_;
  std::map<double, Level> levels_;
};

}  // namespace dtrain::tune

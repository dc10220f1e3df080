#include "launcher/tune/median.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "launcher/core/text.hpp"

namespace dtrain::tune {

double MedianStopping::Track::mean(double time) const {
  const auto end = std::upper_bound(times.begin(), times.end(), time);
  if (end == times.begin()) return std::numeric_limits<double>::quiet_NaN();
  const auto count = end - times.begin();
  return sums[static_cast<std::size_t>(count - 1)] / static_cast<double>(count);
}

namespace {

void insert_mean(std::vector<double>& means, double mean) {
  if (!std::isfinite(mean)) return;
  means.insert(std::upper_bound(means.begin(), means.end(), mean), mean);
}

}  // namespace

MedianStopping::Step MedianStopping::step_of(double time) {
  int exponent = 0;
  const double part = std::floor(std::frexp(time, &exponent) * 2 * kStepsPerDoubling);
  const double unit = std::ldexp(0.5 / kStepsPerDoubling, exponent);
  return {part * unit, (part + 1) * unit};
}

// Each is computed once: what has gone does not come again.
const MedianStopping::Level* MedianStopping::level(double time) {
  const auto kept = levels_.find(time);
  if (kept != levels_.end()) return &kept->second;
  if (levels_.size() == kMostLevels) {
    if (time < levels_.begin()->first) return nullptr;
    levels_.erase(levels_.begin());
  }
  Level& means = levels_[time];
  for (const auto& [trial, track] : tracks_) {
    if (track.last < time) continue;
    const double mean = track.mean(time);
    if (std::isfinite(mean)) means.push_back(mean);
  }
  std::sort(means.begin(), means.end());
  return &means;
}

Decision MedianStopping::decide(const Measured& report) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const auto [found, fresh] = tracks_.try_emplace(report.trial, Track{{}, {}, kNone, kNone});
  Track& track = found->second;
  const bool counts = report.time >= spec_.grace_period;
  const Step step = step_of(report.time);
  const double at = std::max(step.at, spec_.grace_period);
  const bool is_compared = counts && track.last < at;
  // Of the others, for this trial is not in it yet.
  const Level* others = is_compared ? level(at) : nullptr;
  const std::size_t samples = others ? others->size() : 0;
  double median = 0;
  if (samples > 0) {
    const std::size_t half = samples / 2;
    median = samples % 2 == 1 ? (*others)[half] : ((*others)[half - 1] + (*others)[half]) / 2;
  }

  const double before = track.last;
  track.last = report.time;
  track.best = std::max(track.best, score(mode_, report.value));
  if (counts) {
    track.times.push_back(report.time);
    track.sums.push_back((track.sums.empty() ? 0 : track.sums.back()) + report.value);
    for (auto each = levels_.upper_bound(before);
         each != levels_.end() && each->first <= report.time; ++each) {
      insert_mean(each->second, track.mean(each->first));
    }
  }
  if (!counts) {
    return {
        Action::go_on, "it is in its grace period, up to " + number_text(spec_.grace_period), {}};
  }
  if (!is_compared) return {Action::go_on, "it is next compared at " + number_text(step.next), {}};
  if (samples < static_cast<std::size_t>(spec_.min_samples_required)) {
    return {Action::go_on,
            "only " + std::to_string(samples) + " others came as far, and " +
                std::to_string(spec_.min_samples_required) + " are wanted",
            {}};
  }
  const bool worse = track.best < score(mode_, median);
  const std::string best = std::isfinite(track.best)
                               ? number_text(mode_ == Mode::max ? track.best : -track.best)
                               : "no number";
  return {worse ? Action::stop : Action::go_on,
          "its best, " + best + ", is" + (worse ? "" : " not") + " worse than the median of " +
              std::to_string(samples) + " others, " + number_text(median),
          {}};
}

}  // namespace dtrain::tune

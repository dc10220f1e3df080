#include "trainer/report/step_times.hpp"

#include <numeric>

namespace dtrain::train {

void StepTimes::lap(Part part, Clock::time_point now) {
  parts_[static_cast<std::size_t>(part)] += now - last_;
  last_ = now;
}

void StepTimes::move(Part from, Part to, Clock::duration time) {
  parts_[static_cast<std::size_t>(from)] -= time;
  parts_[static_cast<std::size_t>(to)] += time;
}

void StepTimes::step(std::int64_t samples) {
  ++steps_;
  samples_ += samples;
}

StepTimes::Clock::duration StepTimes::total() const {
  return std::accumulate(parts_.begin(), parts_.end(), Clock::duration{});
}

Metrics StepTimes::take() {
  constexpr const char* kNames[kParts] = {"data_wait_percent", "copy_percent", "compute_percent",
                                          "communicate_percent", "other_percent"};
  Metrics metrics;
  const std::chrono::duration<double> all = total();
  if (steps_ > 0 && all.count() > 0) {
    metrics["samples_per_second"] = static_cast<double>(samples_) / all.count();
    metrics["step_ms"] = all.count() * 1000 / static_cast<double>(steps_);
    for (std::size_t i = 0; i < kParts; ++i) {
      const std::chrono::duration<double> part = parts_[i];
      if (part.count() > 0) metrics[kNames[i]] = 100 * part / all;
    }
  }
  parts_ = {};
  steps_ = samples_ = 0;
  return metrics;
}

}  // namespace dtrain::train

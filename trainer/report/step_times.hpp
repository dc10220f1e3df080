#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "trainer/core/metrics.hpp"

namespace dtrain::train {

// Where the time of training steps goes, so that "is it the data?" has an answer:
//
//     times.begin();
//     batch = loader.next();        times.lap(Part::wait);
//     batch.images.to(device);      times.lap(Part::copy);
//     loss.backward(); …            times.lap(Part::compute);
//     times.step(samples);
//
// One thread. What a GPU does in the background is seen where the program waits for it.
class StepTimes {
 public:
  enum class Part : std::uint8_t { wait, copy, compute, communicate, other };
  using Clock = std::chrono::steady_clock;

  void begin(Clock::time_point now = Clock::now()) { last_ = now; }
  // All time since begin() or the last lap goes to `part`.
  void lap(Part part, Clock::time_point now = Clock::now());
  // Moves time that lies within one part to another: communication within the backward pass.
  void move(Part from, Part to, Clock::duration time);
  void step(std::int64_t samples);

  std::int64_t steps() const { return steps_; }
  Clock::duration total() const;
  // samples_per_second of this rank, step_ms, and the share of each part that took any:
  // data_wait_percent, copy_percent, compute_percent, communicate_percent, other_percent. Of the
  // steps since the last call; nothing if there were none.
  Metrics take();

 private:
  static constexpr std::size_t kParts = 5;
  std::array<Clock::duration, kParts> parts_{};
  Clock::time_point last_{};
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;
};

}  // namespace dtrain::train

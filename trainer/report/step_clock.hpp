#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtrain::train {

// What a rank's steps took since its process began, in seconds (docs/rank_contract.md, step_times).
// What is not known is absent.
struct StepSums {
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> data;
  std::optional<double> compute;
  std::optional<double> communication;
  std::optional<double> wait;
  std::optional<double> p50;  // of the newest single steps
  std::optional<double> p90;
  std::optional<double> max;

  bool operator==(const StepSums&) const = default;
};

// How long the training's thread has been inside of collectives so far.
struct CollectiveTime {
  std::chrono::nanoseconds moving{};  // copying and adding
  std::chrono::nanoseconds
      waiting{};  // for other ranks; with `moving`, where that is not told apart
  bool tells_moving = false;
  bool tells_waiting = false;  // there are no collectives but those
};

// Where the time of a rank's steps goes, for its heartbeats. What counts is the time in the phases
// "data" and "compute", from one step() to the next: neither validation nor checkpoints, which
// belong to no step. A program that has no such phases has no sums.
//
// Of what a phase took, the time inside of collectives is no data and no computing.
class StepClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kNewest = 100;  // steps of which quantiles are

  // The training's thread. `so_far` is absent where nothing is known of collectives: then all that
  // is known of a step is how long it took.
  void enter(std::string_view phase, Time now, const std::optional<CollectiveTime>& so_far);
  // So many steps are done. The first, and one below the last, count one.
  void step(std::int64_t step, Time now, const std::optional<CollectiveTime>& so_far);

  // Any thread, without holding up the training's. Nothing before the first step that counts, or
  // while one is just being added.
  std::optional<StepSums> read() const;

 private:
  enum class Part : std::uint8_t { none, data, compute };
  struct Sums {
    std::int64_t steps = 0;
    std::chrono::nanoseconds seconds{};
    std::chrono::nanoseconds data{};
    std::chrono::nanoseconds moving{};
    std::chrono::nanoseconds waiting{};
  };

  void count(Time now, const std::optional<CollectiveTime>& so_far);
  void publish(std::chrono::nanoseconds each);

  // The training's thread's own.
  Part part_ = Part::none;
  Time last_{};
  CollectiveTime last_collectives_;
  bool knows_collectives_ = false;
  Sums sums_;
  std::chrono::nanoseconds at_last_step_{};
  std::optional<std::int64_t> last_step_;

  // What others read: whole while `version_` is even and stays the same.
  std::atomic<std::uint64_t> version_{0};
  std::atomic<std::int64_t> steps_{0}, seconds_{0}, data_{0}, moving_{0}, waiting_{0};
  std::atomic<bool> tells_data_{false}, tells_moving_{false}, tells_waiting_{false};
  std::atomic<std::int64_t> published_{0};  // steps that went to `newest_`
  std::array<std::atomic<float>, kNewest> newest_{};
};

}  // namespace dtrain::train

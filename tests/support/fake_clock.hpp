#pragma once

#include "launcher/core/clock.hpp"

namespace dtrain::testing {

// Time that moves only by hand, all kinds together.
class FakeClock final : public Clock {
 public:
  Monotonic now() const override { return now_; }
  WallTime wall() const override { return wall_; }
  std::chrono::nanoseconds boot() const override { return now_.time_since_epoch(); }
  // The time of the day is set.
  void set_by(std::chrono::nanoseconds by) {
    wall_ += std::chrono::duration_cast<WallTime::duration>(by);
  }
  void advance(std::chrono::nanoseconds by) {
    now_ += by;
    wall_ += std::chrono::duration_cast<WallTime::duration>(by);
  }
  void set_wall(WallTime::duration by) { wall_ += by; }  // as who sets a machine's clock

 private:
  Monotonic now_{std::chrono::hours(1)};
  WallTime wall_{std::chrono::seconds(1767323045)};  // 2026-01-02T03:04:05Z
};

}  // namespace dtrain::testing

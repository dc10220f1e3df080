#pragma once

#include <chrono>
#include <string>

namespace dtrain {

using Monotonic = std::chrono::steady_clock::time_point;  // for timeouts: never jumps
using WallTime = std::chrono::system_clock::time_point;   // for people and records

// The edge to time. The fake in tests/support is moved by hand.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Monotonic now() const = 0;
  virtual WallTime wall() const = 0;
  // Since the machine started, time asleep included: nobody sets it (CLOCK_BOOTTIME).
  virtual std::chrono::nanoseconds boot() const = 0;
};

std::chrono::nanoseconds boot_time();

class SystemClock final : public Clock {
 public:
  Monotonic now() const override { return std::chrono::steady_clock::now(); }
  WallTime wall() const override { return std::chrono::system_clock::now(); }
  std::chrono::nanoseconds boot() const override { return boot_time(); }
};

// RFC 3339 in UTC with milliseconds: 2026-01-02T03:04:05.678Z.
std::string rfc3339(WallTime time);
// Of that, the seconds of its day: 03:04:05Z.
std::string time_of_day(WallTime time);
// The reverse; throws Error(invalid).
WallTime parse_rfc3339(const std::string& text);

// Milliseconds since 1970, as the database and the wire keep times.
std::int64_t to_millis(WallTime time);
WallTime from_millis(std::int64_t millis);

}  // namespace dtrain

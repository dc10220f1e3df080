#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace dtrain::node {

// How long output is still read when its command has ended. What was in the pipes then is the
// command's own: it is read whole, however long the reader takes. What processes that it left
// behind write later is read for a while, in which the time does not count that the reader keeps us
// waiting; but then no more than kLeftBehindBytes.
inline constexpr std::chrono::milliseconds kLeftBehindTime{1000};
inline constexpr std::uint64_t kLeftBehindBytes = std::uint64_t{1} << 20;

class Drain {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  // `own` bytes are in the pipes at the command's end.
  Drain(std::uint64_t own, Time end) : own_(own), end_(end), since_(end) {}

  void took(std::uint64_t bytes) {
    const std::uint64_t of_it = std::min(own_, bytes);
    own_ -= of_it;
    others_ += bytes - of_it;
  }
  // The reader keeps us waiting, from now on or no more.
  void stop(Time now) {
    if (since_) spent_ += now - *since_;
    since_.reset();
  }
  void go_on(Time now) { since_ = now; }

  // When to look again; zero: enough was read. Absent while the reader keeps us waiting.
  std::optional<Duration> left(Time now) const {
    if (own_ == 0 && others_ > kLeftBehindBytes && now - end_ >= kLeftBehindTime) return Duration{};
    if (!since_) return std::nullopt;
    if (own_ > 0) return kLeftBehindTime;
    return std::max(Duration{}, Duration(kLeftBehindTime) - spent_ - (now - *since_));
  }

 private:
  std::uint64_t own_;
  std::uint64_t others_ = 0;
  Time end_;
  std::optional<Time> since_;  // absent: it stands still
  Duration spent_{};
};

}  // namespace dtrain::node

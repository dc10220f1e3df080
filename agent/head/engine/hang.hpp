#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/attempt.hpp"

// Whether an attempt makes progress, and if not, which rank lags and where it differs. Pure.
namespace dtrain::head {

// Where a rank is, by what was last heard of it.
struct RankPlace {
  NodeId node;
  wire::RankBeat beat;
  std::optional<Monotonic> heard;  // its newest heartbeat; absent: there was none
  bool ended = false;              // it has exited
};

// How the ranks of an attempt advance. In the head's memory alone: a head that is started anew
// begins anew with it.
class Advance {
 public:
  // The ranks have started, or nothing could be heard of them for a while: time counts from now.
  void start(Monotonic now) { moved_ = now; }
  void started(int rank, const NodeId& node) { ranks_[rank].node = node; }
  // Any report. True if it says that something has moved: another step, collective or phase than
  // before, or metrics, progress, a checkpoint.
  bool heard(const NodeId& node, const wire::RankBeat& beat, bool heartbeat, Monotonic now);
  void ended(int rank, Monotonic now);  // that is an advance too

  Monotonic moved() const { return moved_; }
  const std::map<int, RankPlace>& ranks() const { return ranks_; }
  // How long nothing may move. What was asked for, else, once kSteps steps are known, ten times the
  // median of the last hundred, at least kShortest, and twice the longest pause from which the
  // attempt has gone on (long validations, a program that reports every thousand steps). Absent:
  // for ever.
  std::optional<std::chrono::nanoseconds> limit(std::optional<std::chrono::seconds> asked) const;

  static constexpr std::int64_t kSteps = 20;
  static constexpr std::chrono::minutes kShortest{5};

 private:
  void step(std::int64_t step, Monotonic now);
  void move(Monotonic now);

  std::map<int, RankPlace> ranks_;
  Monotonic moved_{};
  bool has_moved_ = false;
  std::chrono::nanoseconds longest_pause_{0};
  std::optional<std::pair<std::int64_t, Monotonic>> top_;  // the highest step, and when it came
  std::int64_t known_steps_ = 0;
  // What one took, and how many took that.
  std::deque<std::pair<std::chrono::nanoseconds, std::int64_t>> steps_;
  std::chrono::nanoseconds median_{0};
};

// A rank that has sent heartbeats is silent when it sends none for so long: three of one that
// waits.
inline constexpr std::chrono::seconds kSilent{30};

struct Hang {
  std::string since;  // "no progress for 5 m 00 s", "no rank has reported anything since 12:05:00Z"
  std::string where;  // its ranks are; empty: nobody knows

  std::string str() const { return where.empty() ? since : since + ": " + where; }
};

// What is wrong with an attempt in which nothing has moved for `limit`; nothing while it is not
// that long. `wall` is the time `now`.
std::optional<Hang> find_hang(const std::map<int, RankPlace>& ranks, Monotonic moved,
                              std::optional<std::chrono::nanoseconds> limit, Monotonic now,
                              WallTime wall);

}  // namespace dtrain::head

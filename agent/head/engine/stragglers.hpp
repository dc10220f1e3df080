#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/attempt.hpp"

// What the steps of an attempt's ranks take, and which rank slows the others down: those compute
// together, so that a step takes all of them as long as the slowest, and only its own time, in
// which it did not wait for others, tells that one apart. Pure.
namespace dtrain::head {

// Seconds a step, the mean over the newest steps. What is not known is absent.
struct Pace {
  std::int64_t steps = 0;  // it is the mean of
  double step = 0;
  std::optional<double> own;  // without waiting for others
  std::optional<double> data;
  std::optional<double> compute;
  std::optional<double> communication;
  std::optional<double> wait;
  // Of single steps; of a rank that does not say them, of the means between its heartbeats.
  double p50 = 0;
  double p90 = 0;
  double max = 0;
  bool slow = false;
};

// By the ranks' heartbeats, in bounded memory for each; a heartbeat costs the same whatever their
// number. In the head's memory alone, as Advance (hang.hpp).
class Stragglers {
 public:
  // A heartbeat; `now` counts for ranks that say nothing but their step.
  void heard(const wire::RankBeat& beat, Monotonic now);
  void ended(int rank);

  // After heartbeats of a node, whose ranks are `count` from `first` on: what is to be told of
  // them, each once. A rank is slow when its own time is above kSlow times the median, and by more
  // than kLeast, for kSteps steps and kBeats heartbeats in a row, and slow no more when it is below
  // kFast times for as many. All ranks of a node at once are told as the node.
  std::vector<std::string> judge(const NodeId& node, int first, int count);

  // Nothing of ranks of which no step is known.
  std::optional<Pace> pace(int rank) const;
  // Of the own times of all ranks; of an even number the lower one of the middle, so that of two
  // the faster is the measure.
  std::optional<double> median() const { return median_; }

  static constexpr double kSlow = 1.5;
  static constexpr double kFast = 1.25;
  static constexpr double kLeast = 0.001;  // seconds a step
  static constexpr std::int64_t kSteps = 20;
  static constexpr std::size_t kBeats = 4;
  static constexpr int kTold = 8;      // that are told as slow at a time
  static constexpr int kDoubled = 10;  // how often the steps double for one that comes and goes

 private:
  static constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
  // Between two heartbeats, in seconds: small, since there are many. What is not known is NaN, and
  // so is each sum with it.
  struct Piece {
    std::int64_t steps = 0;
    float seconds = 0;
    float data = kUnknown;
    float compute = kUnknown;
    float communication = kUnknown;
    float wait = kUnknown;

    float own() const { return std::isnan(wait) ? seconds : seconds - wait; }
  };
  struct Rank {
    std::optional<wire::RankBeat::StepTimes> last;
    std::optional<std::pair<std::int64_t, Monotonic>> last_step;
    // The newest: of at least kSteps and kBeats, if there are so many, and no more than that takes.
    std::vector<Piece> pieces;
    std::optional<double> own;     // a step, but for the slowest piece: one pause is no slowness
    std::int64_t row = 0;          // steps in which it was on the other side than `slow` says
    std::size_t row_beats = 0;     // the same
    std::int64_t untold = 0;       // steps since it is slow
    std::size_t untold_beats = 0;  // the same
    int times = 0;                 // that it was told
    bool slow = false;
    bool told = false;  // by itself, not with its node
    bool ended = false;

    std::optional<Piece> piece(const wire::RankBeat& beat, Monotonic now);
    void keep(const Piece& piece);
    Piece sum(bool with_slowest) const;
    void judge(const Piece& newest, double median);
  };
  using Group = std::vector<std::pair<int, Rank*>>;

  void find_median();
  std::string difference(const Group& group) const;
  std::string beginning(const Group& group, const std::string& node, bool whole) const;
  std::string end(const Group& group, const std::string& node, bool whole) const;

  std::map<int, Rank> ranks_;
  std::set<NodeId> nodes_;  // those that are told as slow
  std::optional<double> median_;
  std::size_t since_ = 0;  // heartbeats since it was found
  int told_ = 0;
};

}  // namespace dtrain::head

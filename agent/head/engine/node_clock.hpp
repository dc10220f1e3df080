#pragma once

#include <chrono>
#include <deque>
#include <optional>

// How far a node's clock is from the head's: pure. Times are nanoseconds of either clock, whatever
// they count from.
namespace dtrain::head {

struct ClockOffset {
  std::chrono::nanoseconds by{0};         // positive: the node's is ahead
  std::chrono::nanoseconds uncertain{0};  // it is right to so much
};

// Of a question and its answer: asked and answered by the head's clock, received and sent by the
// node's. The middle of both ways; wrong by half of what they took at most.
ClockOffset clock_offset(std::chrono::nanoseconds asked, std::chrono::nanoseconds received,
                         std::chrono::nanoseconds sent, std::chrono::nanoseconds answered);

// The clock filter of RFC 5905, section 10: of the last eight measurements that one counts of which
// the uncertainty, which grows with age, is the least. One that a newer one contradicts is dropped:
// the clock was set, or its machine stood still.
class NodeClock {
 public:
  static constexpr std::size_t kStages = 8;
  // How far two clocks part that nobody corrects: 100 µs a second. (RFC 5905's PHI is 15.)
  static constexpr double kDrift = 100e-6;

  void add(std::chrono::nanoseconds asked, std::chrono::nanoseconds received,
           std::chrono::nanoseconds sent, std::chrono::nanoseconds answered);
  // Absent: it was never measured. `now` by the head's clock.
  std::optional<ClockOffset> at(std::chrono::nanoseconds now) const;

 private:
  struct Sample {
    ClockOffset offset;
    std::chrono::nanoseconds time;  // by the head's clock

    ClockOffset at(std::chrono::nanoseconds now) const;
  };
  std::deque<Sample> samples_;  // the newest is the last
};

}  // namespace dtrain::head

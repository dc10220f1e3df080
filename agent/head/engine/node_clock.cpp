#include "agent/head/engine/node_clock.hpp"

#include <algorithm>

namespace dtrain::head {

using std::chrono::nanoseconds;

namespace {

nanoseconds drift(nanoseconds in) {
  return nanoseconds(static_cast<std::int64_t>(
      static_cast<double>(std::max(in, nanoseconds(0)).count()) * NodeClock::kDrift));
}

}  // namespace

ClockOffset clock_offset(nanoseconds asked, nanoseconds received, nanoseconds sent,
                         nanoseconds answered) {
  const auto way = std::max((answered - asked) - (sent - received), nanoseconds(0));
  return {((received - asked) + (sent - answered)) / 2, way / 2};
}

ClockOffset NodeClock::Sample::at(nanoseconds now) const {
  return {offset.by, offset.uncertain + drift(now - time)};
}

void NodeClock::add(nanoseconds asked, nanoseconds received, nanoseconds sent,
                    nanoseconds answered) {
  // Not an exchange: these are no times of one.
  if (answered < asked || sent < received || sent - received > answered - asked) return;
  Sample newest{clock_offset(asked, received, sent, answered), answered};
  newest.offset.uncertain += drift(answered - asked);  // the answer took its time
  std::erase_if(samples_, [&](const Sample& old) {
    const ClockOffset then = old.at(answered);
    return std::chrono::abs(then.by - newest.offset.by) > then.uncertain + newest.offset.uncertain;
  });
  samples_.push_back(newest);
  if (samples_.size() > kStages) samples_.pop_front();
}

std::optional<ClockOffset> NodeClock::at(nanoseconds now) const {
  std::optional<ClockOffset> best;
  for (const Sample& sample : samples_) {
    const ClockOffset each = sample.at(now);
    if (!best || each.uncertain <= best->uncertain) best = each;
  }
  return best;
}

}  // namespace dtrain::head

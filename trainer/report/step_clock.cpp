#include "trainer/report/step_clock.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dtrain::train {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Who reads one of these has seen that `version_` is odd, or another.
constexpr auto kRelease = std::memory_order_release;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr int kTries = 100;

double in_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

}  // namespace

void StepClock::count(Time now, const std::optional<CollectiveTime>& so_far) {
  const CollectiveTime here = so_far.value_or(CollectiveTime{});
  if (part_ != Part::none) {
    const auto took = now - last_;
    const auto moved = here.moving - last_collectives_.moving;
    const auto waited = here.waiting - last_collectives_.waiting;
    sums_.seconds += took;
    sums_.moving += moved;
    sums_.waiting += waited;
    if (part_ == Part::data) sums_.data += std::max(took - moved - waited, {});
  }
  last_ = now;
  last_collectives_ = here;
  knows_collectives_ = so_far.has_value();
}

void StepClock::enter(std::string_view phase, Time now,
                      const std::optional<CollectiveTime>& so_far) {
  count(now, so_far);
  part_ = phase == "data" ? Part::data : phase == "compute" ? Part::compute : Part::none;
}

void StepClock::step(std::int64_t step, Time now, const std::optional<CollectiveTime>& so_far) {
  if (last_step_ == step) return;
  count(now, so_far);
  const std::int64_t done = last_step_ && step > *last_step_ ? step - *last_step_ : 1;
  last_step_ = step;
  const auto took = sums_.seconds - at_last_step_;
  if (took.count() == 0) return;  // in no phase that counts
  at_last_step_ = sums_.seconds;
  sums_.steps += done;
  publish(took / done);
}

void StepClock::publish(std::chrono::nanoseconds each) {
  const std::uint64_t version = version_.load(kRelaxed);
  version_.store(version + 1, kRelaxed);
  steps_.store(sums_.steps, kRelease);
  seconds_.store(sums_.seconds.count(), kRelease);
  data_.store(sums_.data.count(), kRelease);
  moving_.store(sums_.moving.count(), kRelease);
  waiting_.store(sums_.waiting.count(), kRelease);
  tells_data_.store(knows_collectives_, kRelease);
  tells_moving_.store(last_collectives_.tells_moving, kRelease);
  tells_waiting_.store(last_collectives_.tells_waiting, kRelease);
  const std::int64_t before = published_.load(kRelaxed);
  newest_[static_cast<std::size_t>(before) % kNewest].store(
      static_cast<float>(in_seconds(each.count())), kRelease);
  published_.store(before + 1, kRelease);
  version_.store(version + 2, kRelease);
}

std::optional<StepSums> StepClock::read() const {
  StepSums sums;
  std::vector<float> newest;
  for (int i = 0;; ++i) {
    if (i == kTries) return std::nullopt;  // the other thread has lost the processor in between
    const std::uint64_t before = version_.load(kAcquire);
    if (before == 0) return std::nullopt;
    sums = {};
    sums.steps = steps_.load(kAcquire);
    const std::int64_t seconds = seconds_.load(kAcquire);
    const std::int64_t data = data_.load(kAcquire);
    const std::int64_t moving = moving_.load(kAcquire);
    const std::int64_t waiting = waiting_.load(kAcquire);
    sums.seconds = in_seconds(seconds);
    if (tells_data_.load(kAcquire)) sums.data = in_seconds(data);
    if (tells_moving_.load(kAcquire)) sums.communication = in_seconds(moving);
    if (tells_waiting_.load(kAcquire)) {
      sums.wait = in_seconds(waiting);
      sums.compute = in_seconds(std::max<std::int64_t>(seconds - data - moving - waiting, 0));
    }
    newest.resize(std::min(kNewest, static_cast<std::size_t>(published_.load(kAcquire))));
    for (std::size_t at = 0; at < newest.size(); ++at) newest[at] = newest_[at].load(kAcquire);
    if (before % 2 == 0 && version_.load(kRelaxed) == before) break;
  }
  std::sort(newest.begin(), newest.end());
  const auto quantile = [&](double part) {
    const auto at =
        static_cast<std::size_t>(std::lround(part * static_cast<double>(newest.size() - 1)));
    return static_cast<double>(newest[at]);
  };
  sums.p50 = quantile(0.5);
  sums.p90 = quantile(0.9);
  sums.max = quantile(1);
  return sums;
}

}  // namespace dtrain::train

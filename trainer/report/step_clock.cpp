#include "trainer/report/step_clock.hpp"

#include <algorithm>
#include <vector>

namespace dtrain::train {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
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
  std::atomic_thread_fence(std::memory_order_release);
  steps_.store(sums_.steps, kRelaxed);
  seconds_.store(sums_.seconds.count(), kRelaxed);
  data_.store(sums_.data.count(), kRelaxed);
  moving_.store(sums_.moving.count(), kRelaxed);
  waiting_.store(sums_.waiting.count(), kRelaxed);
  tells_data_.store(knows_collectives_, kRelaxed);
  tells_moving_.store(last_collectives_.tells_moving, kRelaxed);
  tells_waiting_.store(last_collectives_.tells_waiting, kRelaxed);
  const std::int64_t before = published_.load(kRelaxed);
  newest_[static_cast<std::size_t>(before) % kNewest].store(
      static_cast<float>(in_seconds(each.count())), kRelaxed);
  published_.store(before + 1, kRelaxed);
  version_.store(version + 2, std::memory_order_release);
}

std::optional<StepSums> StepClock::read() const {
  StepSums sums;
  std::vector<float> newest;
  for (int i = 0;; ++i) {
    if (i == kTries) return std::nullopt;  // the other thread has lost the processor in between
    const std::uint64_t before = version_.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;
    sums = {};
    sums.steps = steps_.load(kRelaxed);
    const std::int64_t seconds = seconds_.load(kRelaxed);
    const std::int64_t data = data_.load(kRelaxed);
    const std::int64_t moving = moving_.load(kRelaxed);
    const std::int64_t waiting = waiting_.load(kRelaxed);
    sums.seconds = in_seconds(seconds);
    if (tells_data_.load(kRelaxed)) sums.data = in_seconds(data);
    if (tells_moving_.load(kRelaxed)) sums.communication = in_seconds(moving);
    if (tells_waiting_.load(kRelaxed)) {
      sums.wait = in_seconds(waiting);
      sums.compute = in_seconds(std::max<std::int64_t>(seconds - data - moving - waiting, 0));
    }
    newest.resize(std::min(kNewest, static_cast<std::size_t>(published_.load(kRelaxed))));
    for (std::size_t at = 0; at < newest.size(); ++at) newest[at] = newest_[at].load(kRelaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && version_.load(kRelaxed) == before) break;
  }
  std::sort(newest.begin(), newest.end());
  const auto quantile = [&](double part) {
    const auto at = static_cast<std::size_t>(part * static_cast<double>(newest.size() - 1) + 0.5);
    return static_cast<double>(newest[at]);
  };
  sums.p50 = quantile(0.5);
  sums.p90 = quantile(0.9);
  sums.max = quantile(1);
  return sums;
}

}  // namespace dtrain::train

#include "trainer/report/step_clock.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

using namespace dtrain::train;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// A training's thread whose clock, and whose collectives, a test moves.
struct Training {
  StepClock clock;
  StepClock::Time now{seconds(100)};
  CollectiveTime spent{{}, {}, true, true};
  bool is_known = true;

  std::optional<CollectiveTime> so_far() const {
    return is_known ? std::optional(spent) : std::nullopt;
  }
  Training& enter(const char* phase) {
    clock.enter(phase, now, so_far());
    return *this;
  }
  Training& takes(milliseconds time, milliseconds moving = {}, milliseconds waiting = {}) {
    now += time;
    spent.moving += moving;
    spent.waiting += waiting;
    return *this;
  }
  Training& step(std::int64_t number) {
    clock.step(number, now, so_far());
    return *this;
  }
};

}  // namespace

TEST_CASE("a step's time goes to data, compute, communication and waiting") {
  Training training;
  CHECK_FALSE(training.clock.read().has_value());
  training.enter("data").takes(milliseconds(30));
  training.enter("compute").takes(milliseconds(100), milliseconds(10), milliseconds(40)).step(1);
  StepSums sums = training.clock.read().value();
  CHECK(sums.steps == 1);
  CHECK(sums.seconds == doctest::Approx(0.13));
  CHECK(*sums.data == doctest::Approx(0.03));
  CHECK(*sums.compute == doctest::Approx(0.05));
  CHECK(*sums.communication == doctest::Approx(0.01));
  CHECK(*sums.wait == doctest::Approx(0.04));
  // A collective among the data, of ranks that agree whether there is more, is no data.
  training.enter("data").takes(milliseconds(50), milliseconds(0), milliseconds(45));
  training.enter("compute").takes(milliseconds(20)).step(2).step(2);
  sums = training.clock.read().value();
  CHECK(sums.steps == 2);
  CHECK(*sums.data == doctest::Approx(0.035));
  CHECK(*sums.compute == doctest::Approx(0.07));
  CHECK(*sums.wait == doctest::Approx(0.085));
  CHECK(*sums.p50 == doctest::Approx(0.13));
  CHECK(*sums.max == doctest::Approx(0.13));
}

TEST_CASE("validation and checkpoints belong to no step, nor what waits within them") {
  Training training;
  training.enter("compute").takes(milliseconds(10));
  training.enter("checkpoint").takes(seconds(60), seconds(1), seconds(50));
  training.enter("compute").takes(milliseconds(10)).step(1);
  training.enter("validation").takes(seconds(600), seconds(2), seconds(100));
  training.enter("").takes(seconds(5));
  training.enter("data").takes(milliseconds(5)).enter("compute").takes(milliseconds(5)).step(2);
  const StepSums sums = training.clock.read().value();
  CHECK(sums.steps == 2);
  CHECK(sums.seconds == doctest::Approx(0.03));
  CHECK(*sums.wait == 0);
  CHECK(*sums.communication == 0);
  CHECK(*sums.max == doctest::Approx(0.02));
}

TEST_CASE("steps count from the first, which a resume may have made a high one") {
  Training training;
  training.enter("compute").takes(milliseconds(10)).step(1000);
  CHECK(training.clock.read()->steps == 1);
  training.takes(milliseconds(40)).step(1004);  // a loop that says every fourth
  CHECK(training.clock.read()->steps == 5);
  CHECK(*training.clock.read()->max == doctest::Approx(0.01));
  training.takes(milliseconds(10)).step(1);  // another training in this process
  CHECK(training.clock.read()->steps == 6);
  training.enter("").takes(milliseconds(10)).step(2);
  CHECK(training.clock.read()->steps == 6);
}

TEST_CASE("what is not known is not there") {
  Training gpu;
  gpu.spent.tells_moving = gpu.spent.tells_waiting = false;
  gpu.enter("data").takes(milliseconds(10)).enter("compute").takes(milliseconds(10)).step(1);
  StepSums sums = gpu.clock.read().value();
  CHECK(*sums.data == doctest::Approx(0.01));
  CHECK(sums.seconds == doctest::Approx(0.02));
  CHECK_FALSE((sums.compute || sums.communication || sums.wait));
  Training threaded;
  threaded.is_known = false;
  threaded.enter("data").takes(milliseconds(10)).step(1);
  sums = threaded.clock.read().value();
  CHECK(sums.seconds == doctest::Approx(0.01));
  CHECK_FALSE((sums.data || sums.compute || sums.communication || sums.wait));
  Training by_hand;  // no phase is ever said
  by_hand.takes(seconds(1)).step(1).takes(seconds(1)).step(2);
  CHECK_FALSE(by_hand.clock.read().has_value());
}

TEST_CASE("quantiles are of the newest hundred steps") {
  Training training;
  training.enter("compute");
  for (int step = 1; step <= 1000; ++step) training.takes(milliseconds(step)).step(step);
  const StepSums sums = training.clock.read().value();
  CHECK(*sums.p50 == doctest::Approx(0.951));
  CHECK(*sums.p90 == doctest::Approx(0.990));
  CHECK(*sums.max == doctest::Approx(1.0));
}

TEST_CASE("what another thread reads is of one step") {
  Training training;
  training.enter("data");
  std::atomic<bool> ends{false};
  std::thread trains([&] {
    for (int step = 1; !ends; ++step) {
      training.enter("data").takes(milliseconds(1));
      training.enter("compute").takes(milliseconds(3), milliseconds(1), milliseconds(1)).step(step);
    }
  });
  std::int64_t last = 0;
  int read = 0;
  while (read < 2000) {
    const auto sums = training.clock.read();
    if (!sums) {
      std::this_thread::yield();
      continue;
    }
    ++read;
    const auto steps = static_cast<double>(sums->steps);
    REQUIRE(sums->steps >= last);
    REQUIRE(sums->seconds == doctest::Approx(0.004 * steps));
    REQUIRE(*sums->wait == doctest::Approx(0.001 * steps));
    REQUIRE(*sums->compute == doctest::Approx(0.001 * steps));
    last = sums->steps;
  }
  ends = true;
  trains.join();
}

#include "trainer/report/step_times.hpp"

#include <doctest/doctest.h>

using namespace dtrain::train;
using namespace std::chrono_literals;
using Part = StepTimes::Part;

TEST_CASE("the parts of a step, and the speed") {
  StepTimes times;
  CHECK(times.take().empty());
  StepTimes::Clock::time_point now{};
  for (int step = 0; step < 2; ++step) {
    times.begin(now);
    times.lap(Part::wait, now += 10ms);
    times.lap(Part::compute, now += 90ms);
    times.move(Part::compute, Part::communicate, 30ms);
    times.step(8);
    now += 1s;  // what lies between two steps does not count
  }
  CHECK(times.steps() == 2);
  const Metrics metrics = times.take();
  CHECK(metrics.at("samples_per_second") == doctest::Approx(80));
  CHECK(metrics.at("step_ms") == doctest::Approx(100));
  CHECK(metrics.at("data_wait_percent") == doctest::Approx(10));
  CHECK(metrics.at("compute_percent") == doctest::Approx(60));
  CHECK(metrics.at("communicate_percent") == doctest::Approx(30));
  CHECK_FALSE(metrics.contains("copy_percent"));
  CHECK(times.take().empty());
}

#include "trainer/schedule/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/checkpoint/safetensors.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

constexpr double kBase = 0.1;

// What Python gave: tests/golden/schedules/make.py.
std::vector<double> golden(const std::string& name) {
  const char* folder = std::getenv("DTRAIN_GOLDEN");
  if (folder == nullptr) throw std::runtime_error("DTRAIN_GOLDEN is not set; run meson test");
  const SafetensorsFile file(std::filesystem::path(folder) / "schedules/schedules.safetensors");
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) throw std::runtime_error("no golden schedule " + name);
  std::vector<double> values(static_cast<std::size_t>(entry->shape.at(0)));
  std::memcpy(values.data(), file.bytes(*entry).data(), values.size() * sizeof(double));
  return values;
}

// The largest relative difference over all steps.
double difference(const std::string& name, const SchedulePtr& schedule, bool momentum = false) {
  const std::vector<double> expected = golden(name + (momentum ? ".momentum" : ""));
  REQUIRE(expected.size() == 1000);
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Rate rate = schedule->at(kBase, static_cast<std::int64_t>(i));
    const double value = momentum ? rate.momentum.value() : rate.lr;
    worst = std::max(worst, std::abs(value - expected[i]) / expected[i]);
  }
  return worst;
}

}  // namespace

TEST_CASE("each schedule is Python's for 1,000 steps") {
  const std::map<std::string, SchedulePtr> schedules{
      {"lambda",
       lambda_schedule([](std::int64_t n) { return 1 / (1 + 0.01 * static_cast<double>(n)); })},
      {"linear", linear_schedule(0.01, 1, 250)},
      {"exponential", exponential_schedule(0.995)},
      {"multi_step", multi_step_schedule({100, 300, 300, 900}, 0.5)},
      {"cosine", cosine_schedule(400, 0.001)},
      {"cosine_restarts", cosine_restarts_schedule(70, 1, 0.001)},
      {"cosine_restarts_longer", cosine_restarts_schedule(50, 2, 0.001)},
      {"one_cycle", one_cycle_schedule({.max_lr = 0.5, .total_steps = 1000})},
      {"one_cycle_three", one_cycle_schedule({.max_lr = 0.5,
                                              .total_steps = 1000,
                                              .pct_start = 0.25,
                                              .cosine = false,
                                              .three_phase = true})},
      {"sequential",
       sequential_schedule({linear_schedule(0.01, 1, 100), cosine_restarts_schedule(150, 2, 1e-4),
                            exponential_schedule(0.99)},
                           {100, 700})}};
  for (const auto& [name, schedule] : schedules) {
    CAPTURE(name);
    // Python reaches most values by multiplying step by step, and gathers rounding on the way.
    CHECK(difference(name, schedule) < 1e-11);
    const bool moves = schedule->at(kBase, 0).momentum.has_value();
    CHECK(moves == name.starts_with("one_cycle"));
    if (moves) CHECK(difference(name, schedule, true) < 1e-12);
  }
}

TEST_CASE("one cycle stays where it ended") {
  const SchedulePtr cycle = one_cycle_schedule({.max_lr = 1, .total_steps = 10});
  CHECK(cycle->at(0, 10).lr == cycle->at(0, 9).lr);
  CHECK(cycle->at(0, 9).lr == doctest::Approx(1.0 / 25 / 1e4));
}

TEST_CASE("what a schedule says of itself tells it from others") {
  CHECK(cosine_schedule(10)->describe() == cosine_schedule(10)->describe());
  CHECK(cosine_schedule(10)->describe() != cosine_schedule(11)->describe());
  const auto two = [](double gamma) {
    return sequential_schedule({cosine_schedule(5), exponential_schedule(gamma)}, {5})->describe();
  };
  CHECK(two(0.5) != two(0.6));
}

TEST_CASE("numbers that make no sense are refused") {
  const auto refusal = [](auto&& make) { return message_of<Error>(make); };
  CHECK(contains(refusal([] { linear_schedule(0, 1, 5); }), "a start above 0"));
  CHECK(contains(refusal([] { multi_step_schedule({5, 3}); }), "must not fall"));
  CHECK(contains(refusal([] { cosine_schedule(0); }), "1 step or more"));
  CHECK(contains(refusal([] { cosine_restarts_schedule(10, 0); }), "at least 1"));
  CHECK(contains(refusal([] { one_cycle_schedule({.pct_start = 2}); }), "pct_start"));
  CHECK(contains(refusal([] { sequential_schedule({cosine_schedule(5)}, {1}); }), "one milestone"));
  CHECK(contains(refusal([] { lambda_schedule(nullptr); }), "needs a function"));
}

#include "cli/step_times.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using dtrain::cli::step_times;
using nlohmann::json;

namespace {

json rank_with(int rank, const json& own, double data, bool slow = false) {
  return {{"rank", rank},
          {"node", "node-" + std::to_string(rank / 4)},
          {"step_times",
           {{"steps", 20},
            {"step", 0.5},
            {"p50", 0.5},
            {"p90", 0.6 + rank / 100.0},
            {"max", 1.25},
            {"own", own},
            {"data", data},
            {"compute", own.is_null() ? own : json(0.1)},
            {"communication", nullptr},
            {"wait", own.is_null() ? own : json(0.5 - own.get<double>())},
            {"slow", slow}}}};
}

json job_of(const json& ranks) {
  return {{"attempts", {{{"ranks", json::array()}}, {{"ranks", ranks}}}}};
}

}  // namespace

TEST_CASE("the step times of a few ranks are a row each") {
  const json job = job_of({rank_with(0, 0.15, 0.05),
                           rank_with(1, 0.45, 0.35, true),
                           rank_with(2, nullptr, 0.001),
                           {{"rank", 3}}});
  CHECK(step_times(job, false) ==
        "RANKS  NODE    P50     P90     MAX     OWN     DATA    COMPUTE  COMM  WAIT\n"
        "0      node-0  500 ms  600 ms  1.25 s  150 ms  50 ms   100 ms         350 ms\n"
        "1      node-0  500 ms  610 ms  1.25 s  450 ms  350 ms  100 ms         50 ms   slow\n"
        "2      node-0  500 ms  620 ms  1.25 s          1.0 ms\n");
  CHECK(step_times(job_of(json::array()), false).empty());
  CHECK(step_times(json::object(), false).empty());
  CHECK(step_times(job_of({{{"rank", 0}, {"step_times", json::object()}}}), false) ==
        "RANKS  NODE  P50  P90  MAX  OWN  DATA  COMPUTE  COMM  WAIT\n0\n");
}

TEST_CASE("of many ranks there are the nodes and the slowest") {
  json ranks = json::array();
  for (int rank = 0; rank < 4000; ++rank) {
    const bool slow = rank == 13 || rank / 4 == 5;
    ranks.push_back(rank_with(rank, slow ? 0.4 + rank / 1000.0 : 0.1, slow ? 0.3 : 0.01, slow));
  }
  const std::string text = step_times(job_of(ranks), false, 3);
  CHECK(text ==
        "RANKS  NODE    P50     P90     MAX     OWN     DATA    COMPUTE  COMM  WAIT\n"
        "20-23  node-5  500 ms  830 ms  1.25 s  421 ms  300 ms  100 ms         78 ms   slow\n"
        "0-3    node-0  500 ms  630 ms  1.25 s  100 ms  10 ms   100 ms         400 ms\n"
        "4-7    node-1  500 ms  670 ms  1.25 s  100 ms  10 ms   100 ms         400 ms\n"
        "23     node-5  500 ms  830 ms  1.25 s  423 ms  300 ms  100 ms         77 ms   slow\n"
        "22     node-5  500 ms  820 ms  1.25 s  422 ms  300 ms  100 ms         78 ms   slow\n"
        "21     node-5  500 ms  810 ms  1.25 s  421 ms  300 ms  100 ms         79 ms   slow\n"
        "of 4000 ranks on 1000 nodes, the slowest\n");
}

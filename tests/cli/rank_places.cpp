#include "cli/rank_places.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using dtrain::cli::rank_places;
using nlohmann::json;

TEST_CASE("ranks that are at one place are one line, the fewest first") {
  json ranks = json::array();
  for (int rank = 0; rank < 8; ++rank) {
    const bool lags = rank == 5;
    ranks.push_back({{"rank", rank},
                     {"heartbeat",
                      {{"step", 12},
                       {"phase", lags ? "data" : "compute"},
                       {"collective",
                        {{"sequence", lags ? 41 : 42},
                         {"name", "all_reduce"},
                         {"bytes", 4096},
                         {"entered", nullptr},
                         {"done", lags}}}}}});
  }
  ranks.push_back({{"rank", 8}});
  ranks.push_back(
      {{"rank", 9}, {"heartbeat", {{"step", nullptr}, {"phase", ""}, {"collective", nullptr}}}});
  json job = {{"attempts", {{{"ranks", json::array()}}, {{"ranks", ranks}}}}};
  CHECK(rank_places(job) ==
        "rank 9: alive\n"
        "rank 5: step 12, data, after all_reduce #41 (4.0 KiB)\n"
        "ranks 0-4, 6-7: step 12, compute, in all_reduce #42 (4.0 KiB)\n");
  CHECK(rank_places(job, 1) == "rank 9: alive\nand 2 places more\n");
  CHECK(rank_places(json::object()).empty());
  CHECK(rank_places({{"attempts", json::array()}}).empty());
  // Of a number alone nobody knows whether the rank is still in it.
  job["attempts"] = {
      {{"ranks",
        {{{"rank", 0},
          {"heartbeat",
           {{"step", 1},
            {"phase", ""},
            {"collective",
             {{"sequence", 7}, {"name", ""}, {"bytes", nullptr}, {"done", nullptr}}}}}}}}}};
  CHECK(rank_places(job) == "rank 0: step 1, after collective #7\n");
}

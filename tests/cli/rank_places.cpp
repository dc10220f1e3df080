#include "cli/rank_places.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using dtrain::cli::gpu_places;
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

TEST_CASE("GPUs of a job, or what it has of them") {
  const auto node = [](const std::string& name, std::vector<int> gpus, const json& part) {
    return json{{"node", name}, {"gpus", std::move(gpus)}, {"gpu_part", part}};
  };
  const json nodes = json::array({node("a", {3}, 1), node("b", {0, 1}, 1), node("c", {}, 1),
                                  node("d", {3}, 0.25), node("e", {0, 1}, 0.5)});
  const json job = {
      {"attempts", json::array({json{{"nodes", json::array()}}, {{"nodes", nodes}}})}};
  CHECK(gpu_places(job) ==
        "on a: GPU 3\non b: GPUs 0, 1\non d: 0.25 of GPU 3\non e: 0.5 of each of GPUs 0, 1\n");
  CHECK(gpu_places(job, 1) == "on a: GPU 3\nand on 3 nodes more\n");
  CHECK(gpu_places(json::object()).empty());
  // Of an older head.
  CHECK(gpu_places(
            {{"attempts",
              json::array({json{
                  {"nodes", json::array({json{{"node", "a"}, {"gpus", json::array({0})}}})}}})}}) ==
        "on a: GPU 0\n");
}

#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace dtrain::cli {

// Where the ranks of a job are (GET /v1/jobs/ID), by their heartbeats: a line, ended, for each
// place with all ranks that are there, those with the fewest first, at most `most` of them. Empty:
// no rank has sent one.
std::string rank_places(const nlohmann::json& job, std::size_t most = 8);
// Which GPUs its newest attempt has: a line for each node, "on node-0: 0.25 of GPU 3". Empty: none.
std::string gpu_places(const nlohmann::json& job, std::size_t most = 8);

}  // namespace dtrain::cli

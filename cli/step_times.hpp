#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace dtrain::cli {

// What the steps of a job's ranks take (GET /v1/jobs/ID), by their heartbeats: a table, its lines
// ended. Of up to `most` ranks each is a row; of more, each node of `most` at most, and the `most`
// slowest ranks, those whose own time is the longest first. Empty: nothing is known.
std::string step_times(const nlohmann::json& job, bool color, std::size_t most = 8);

}  // namespace dtrain::cli

#pragma once

#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/store/rows.hpp"

// A job's metrics as the API shows them; pure.
namespace dtrain::head {

// Of each rank and set of names at most query.points rows. The order stays.
std::vector<MetricsRow> thinned(std::vector<MetricsRow> rows, const Engine::MetricsQuery& query);

// {"metrics": […]} of docs/api.md.
std::string metrics_text(const std::vector<MetricsRow>& rows);

}  // namespace dtrain::head

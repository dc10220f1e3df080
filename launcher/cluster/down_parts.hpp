#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/cluster/down.hpp"
#include "launcher/cluster/state.hpp"

// The two ways of `down`, for down.cpp. The cluster's lock is held.
namespace dtrain {

DownSurvey survey_local(const std::string& name);
DownReport down_local(const std::string& name, const DownOptions& options);

DownSurvey survey_hosts(const ClusterState& state, const DownOptions& options);
DownReport down_hosts(const ClusterState& state, const DownOptions& options);

// What the head says of itself; absent when nobody answers.
std::optional<nlohmann::json> ask_head(const fs::path& socket, const std::string& name);
// Ids of the jobs in it that have not ended.
std::vector<std::string> running_jobs(const nlohmann::json& status);

}  // namespace dtrain

#pragma once

#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/files.hpp"

namespace dtrain {

// Where dtrain-agent is: DTRAIN_AGENT, else beside this program as installed or as built. Throws
// Error(not_found) that names the places it looked at.
fs::path find_agent();

}  // namespace dtrain

#pragma once

#include <string>

#include "launcher/core/paths.hpp"

namespace dtrain::session {

// The process that runs one list: `dtrain-agent setup`, started by start_setup() with the list's
// lock as descriptor 3. Runs what the status says is still to be run, one command after the other,
// until one fails; SIGTERM ends the one that runs, with all that it started. Returns the exit code:
// 0 when all have succeeded.
int setup_main(const paths::NodeRoot& root, const std::string& list);

}  // namespace dtrain::session

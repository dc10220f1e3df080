#pragma once

#include "launcher/core/files.hpp"

namespace dtrain {

// Where dtrain's other programs are: DTRAIN_AGENT, DTRAIN_SCALER and DTRAIN_PROFILER, else beside
// this program as installed or as built. Throw Error(not_found) that names the places where they
// were looked for.
fs::path find_agent();
fs::path find_scaler();
fs::path find_profiler();

}  // namespace dtrain

#pragma once

#include "launcher/core/paths.hpp"
#include "launcher/wire/session.hpp"

namespace dtrain::session {

// Runs a command as setup commands are run, and ends what it left in the background.
wire::ProbeResult probe(const paths::NodeRoot& root, const fs::path& home,
                        const wire::Probe& request);

}  // namespace dtrain::session

#pragma once

#include "launcher/core/paths.hpp"

namespace dtrain::session {

// Does what the head wants of a machine that joined by itself (wire::PrepareNode, in the root's
// preparation.json): fetches its files and brings them to their places, runs its lists of setup
// commands from the first one on that differs from what succeeded here, and asks whether it is
// ready. Says on stdout how far it is, a wire::Preparing a line; the last one is `done`. While
// another process of the root is at that it waits. Returns the exit code.
int prepare_main(const paths::NodeRoot& root, const fs::path& program);

}  // namespace dtrain::session

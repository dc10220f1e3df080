#pragma once

#include "launcher/core/paths.hpp"

namespace dtrain::head {

// The head: store, decisions, the API socket and the one TLS port, wired together. Ends, with 0,
// after a shutdown through the API or on SIGTERM; jobs go on without it. While another head holds
// the root it waits. Throws Error when the root is not a head's, or the store cannot be opened.
// `leaves`: whoever keeps it is to end, so that it asks for nobody to come after it.
int head_main(const paths::HeadRoot& root, bool leaves = false);

}  // namespace dtrain::head

#pragma once

#include "launcher/core/paths.hpp"

namespace dtrain::session {

// Joins stdin and stdout to the head's socket until both directions have ended: for an sshd that
// forwards no sockets. An end of one direction is passed on; returns 0. Error(unreachable) when the
// head does not listen.
int bridge_main(const paths::HeadRoot& root);

}  // namespace dtrain::session

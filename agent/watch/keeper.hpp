#pragma once

#include <string>

namespace dtrain::watch {

// Set by the unit that starts a watch again by itself (agent/session/systemd.cpp): it goes first.
inline constexpr const char* kWatchUnit = "DTRAIN_WATCH_UNIT";

// For head and node agents: from now on a thread starts the watch anew when it has died, as
// `program`. One that was ended on purpose, with SIGTERM, stays away. Several may do so at a time:
// the watch's own lock lets one of theirs live. Does nothing in a process without a watch.
void keep_watch(const std::string& program);

}  // namespace dtrain::watch

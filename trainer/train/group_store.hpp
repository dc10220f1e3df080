#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

#include "trainer/core/environment.hpp"

namespace c10d {
class TCPStore;
}

namespace dtrain::train {

// The store by which ranks find each other, at MASTER_ADDR:MASTER_PORT. Rank 0 serves it, on the
// socket that the launcher holds for it if there is one, unless the launcher serves it itself.
// Throws Error with address, port and rank.
c10::intrusive_ptr<c10d::TCPStore> open_group_store(const Environment& env,
                                                    std::chrono::milliseconds join_timeout);

// Returns when something listens there, when the answer is anything but that nothing does (what is
// wrong then c10d tells), and at the latest after `limit`. Ranks start side by side, so that rank 0
// often listens some milliseconds after another one comes; c10d's client, refused once, tries again
// after half a second or more, which would be most of a job's start. Of `ranks` that look so, all
// together look at most ten times a millisecond; more than a thousand do not, for each look that
// finds it is one more connection that rank 0 takes.
void wait_until_listening(const std::string& host, int port, int ranks,
                          std::chrono::milliseconds limit);

}  // namespace dtrain::train

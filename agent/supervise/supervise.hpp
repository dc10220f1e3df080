#pragma once

#include <chrono>

#include "agent/supervise/group.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"

// The role `supervise`: one process for each attempt and node. It starts the ranks and ends with
// the last of them, and outlives the node agent in between.
namespace dtrain::supervise {

struct SuperviseOptions {
  fs::path root;  // the node's
  JobId job;
  int attempt = 1;
  int lock = -1;  // the attempt's lock, inherited (lock.hpp); -1: it takes the lock itself
  // How long it waits, once all is over, for a node agent to hear the last event.
  std::chrono::milliseconds linger{60000};
  GroupPlaces places;
  fs::path program;  // dtrain-agent, for its role `task`
};

// Runs to the attempt's end on the calling thread, which must be the process's only one. The
// process should be a session of its own with nothing open but the lock. Returns the process's exit
// code: 0 when the attempt's end has been told or recorded, whatever it was; 1 when it could not
// begin.
int supervise_main(const SuperviseOptions& options);

}  // namespace dtrain::supervise

#pragma once

#include <string>

#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"

// A job's `setup` runs once on a node: what it has made is there for the attempts that come after,
// in the job's own workdir or, where that was sent, in the folder that goes on from attempt to
// attempt. It runs again after it failed, after a reboot, in a folder that is newly made, and when
// it left processes running, which ended with their attempt.
namespace dtrain::supervise {

// Whether it has run in this attempt's folder. With `in_place` all attempts have the same one.
bool setup_has_run(const paths::NodeRoot& root, const JobId& job, int attempt, bool in_place);

// It has run in this attempt, and left no process. Throws Error.
void mark_setup(const paths::NodeRoot& root, const JobId& job, int attempt);

// The folder in which it has run becomes that of a later attempt, if it is there and that attempt
// has none yet. Throws Error.
void hand_on_workdir(const paths::NodeRoot& root, const JobId& job, int attempt);

}  // namespace dtrain::supervise

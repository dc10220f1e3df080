#pragma once

#include "launcher/cluster/up_way.hpp"

namespace dtrain {

// Where the head asks for machines: how many of which type it is to keep, in run.report.asked.
void plan_machines(UpRun& run);
// The same, where it asks for what jobs need beside those that `up` makes; tells it so. That it
// cannot is told of, and no failure.
void tell_growth(UpRun& run, const fs::path& socket);
// Tells it so, and waits until their nodes are ready; or so many of all nodes as min_nodes says; or
// it is stopped, whereby the head goes on. What came of it is in run.report.asked.
void keep_machines(UpRun& run, const fs::path& socket);

}  // namespace dtrain

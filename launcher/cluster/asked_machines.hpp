#pragma once

#include "launcher/cluster/up_way.hpp"

namespace dtrain {

// Where the head asks for machines: tells it how many of which type to keep, and waits until their
// nodes are ready; or so many of all nodes as min_nodes says; or it is stopped, whereby the head
// goes on. The rest is in run.report.asked. A dry run tells nobody.
void keep_machines(UpRun& run, const fs::path& socket);

}  // namespace dtrain

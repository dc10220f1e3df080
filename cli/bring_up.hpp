#pragma once

#include "cli/context.hpp"
#include "launcher/cluster/up.hpp"

namespace dtrain::cli {

// up() with its steps told on stderr. Does not touch the current cluster.
UpReport bring_up(const Context& context, const ClusterSpec& spec);

// The cluster that needs no file: this machine, one node, named "local".
ClusterSpec built_in_local();

}  // namespace dtrain::cli

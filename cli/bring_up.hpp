#pragma once

#include "cli/context.hpp"
#include "launcher/cluster/up.hpp"

namespace dtrain::cli {

// up() with its steps told on stderr. Does not touch the current cluster.
UpReport bring_up(const Context& context, const ClusterSpec& spec, UpOptions options = {});

// choose_by_yaml(), and with `start` the cluster is brought up if it is not.
ClusterSpec choose_and_start(Context& context, const std::string& path, bool start);

// As `dtrain down -y`; gives its exit code.
int take_down(Context& context);

// The cluster that needs no file: this machine, one node, named "local".
ClusterSpec built_in_local();

}  // namespace dtrain::cli

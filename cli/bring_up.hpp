#pragma once

#include "cli/context.hpp"
#include "launcher/cluster/up.hpp"

namespace dtrain::cli {

// up() with its steps told on stderr; machines that cost are asked about, unless options.may_make
// is there to say. Does not touch the current cluster.
UpReport bring_up(const Context& context, const ClusterSpec& spec, UpOptions options = {});

// choose_by_yaml(), and with `start` the cluster is brought up if it is not.
ClusterSpec choose_and_start(Context& context, const std::string& path, bool start);

// `dtrain down` behind a command or a job: asks nothing, and says nothing on stdout but with
// --json. Without `whatever_is_there` the cluster stays up where jobs run or results would be lost,
// which is said. Gives the exit code.
int take_down(Context& context, bool whatever_is_there);

// The cluster that needs no file: this machine, one node, named "local".
ClusterSpec built_in_local();

}  // namespace dtrain::cli

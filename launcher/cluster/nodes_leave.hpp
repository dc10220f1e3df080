#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "launcher/cluster/door.hpp"
#include "launcher/cluster/up.hpp"

namespace dtrain {

// What became of a node that was to leave.
struct NodeGone {
  std::size_t number = 0;  // as in `machines`
  std::string text;        // "left the cluster; 12 files removed", or why not
  bool complete = false;
  bool left = false;  // the cluster: its machine may be given back
};

// Nodes leave a cluster which goes on: none of them gets new ranks from now on. Of each, those that
// run come to their end (within `options.drain_limit`, of all), its certificate is worth nothing
// from then on, and it is cleaned; which needs no other node, so that `gone` tells of each as soon
// as it is done, with those that are done by then, in the thread that calls. One whose machine is
// gone leaves at once. Those that are not done when a stop is asked for stay.
void take_nodes_away(Provider& provider, const ClusterState& state,
                     const std::vector<Machine>& machines, const HeadDoor& door,
                     const UpOptions& options,
                     const std::function<void(const std::vector<NodeGone>& nodes)>& gone);

}  // namespace dtrain

#pragma once

#include <string>

#include "launcher/core/paths.hpp"

namespace dtrain::node {

struct NodeOptions {
  paths::NodeRoot root;
  std::string agent_binary;  // this program, for supervisors
};

// The node agent: dials the head and keeps two connections to it, starts supervisors and passes on
// what they and the head say, runs commands, sweeps what is left over. Ends, with 0, when the head
// says so or on SIGTERM; its supervisors and their ranks go on. While another agent holds the root
// it waits. Throws Error when the root is not a node's.
int node_main(const NodeOptions& options);

}  // namespace dtrain::node

#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "launcher/core/paths.hpp"

namespace dtrain::node {

struct NodeOptions {
  paths::NodeRoot root;
  std::string agent_binary;  // this program, for supervisors
  // Of a node that ends with its container (agent/watch/README.md).
  struct Contained {
    std::chrono::milliseconds limit;  // from the signal on, for all of departure.hpp
    int told = 0;                     // the signal, if it came before this process began
    // What its watch knows, "its container was told to end (SIGTERM)"; empty: it was not told.
    std::function<std::string()> why;
  };
  std::optional<Contained> contained;
};

// A contained node agent's exit code: it has left, and the head does not know all of it.
inline constexpr int kNotAllTold = 3;
// It has left for good, and what is here of it could not be removed.
inline constexpr int kLeftFiles = 4;

// The node agent: dials the head and keeps two connections to it, starts supervisors and passes on
// what they and the head say, runs commands, sweeps what is left over. Ends, with 0, when the head
// says so or on SIGTERM; its supervisors and their ranks go on. A contained one leaves the cluster
// on SIGTERM or SIGINT, in a hurry on SIGQUIT, and ends when it has. While another agent holds the
// root it waits. Throws Error when the root is not a node's.
int node_main(const NodeOptions& options);

}  // namespace dtrain::node

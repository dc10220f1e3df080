#pragma once

#include "launcher/spec/cluster_spec.hpp"
#include "launcher/wire/machines.hpp"
#include "launcher/wire/node_types.hpp"

namespace dtrain {

// What the YAML says of workers' machines that the head asks for, whatever its provider.
wire::WantedMachines::Type wanted_type(const ClusterSpec& spec,
                                       const ClusterSpec::Workers& workers);
// Of all types.
int most_workers(const ClusterSpec& spec);
// What nodes of each type have; without sizes: but for CPUs, GPUs and memory.
wire::NodeTypes node_types(const ClusterSpec& spec, bool with_sizes);

}  // namespace dtrain

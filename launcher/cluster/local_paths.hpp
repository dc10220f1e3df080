#pragma once

#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

// What the YAML names on this machine (sources of file_mounts, private keys) and is not there, or
// cannot be looked at: Error(invalid) each, at its place in the file. A key whose public half is
// there is an agent's, and fine. Nothing for provider local, which uses neither.
std::vector<Error> missing_local_paths(const ClusterSpec& spec);

}  // namespace dtrain

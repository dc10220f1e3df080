#pragma once

#include "launcher/core/files.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

// Tells the head that listens at `socket` what it may delete and keep, as the YAML says; true when
// that is news to it. Throws Error(conflict) for a head that is too old for what the YAML sets.
bool apply_settings(const fs::path& socket, const ClusterSpec& spec);

}  // namespace dtrain

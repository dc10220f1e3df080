#pragma once

#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

// Tells the head that listens at `socket` what it may delete and keep, as the YAML says. Throws
// Error(conflict) for a head that is too old for what the YAML sets.
struct SettingsApplied {
  bool changed = false;               // it was news to the head
  std::vector<std::string> warnings;  // what a person should know of the head's machine
};
SettingsApplied apply_settings(const fs::path& socket, const ClusterSpec& spec);

// Tells it what nodes of each type have, and of which type those are that `up` has made. Throws as
// above.
void apply_node_types(const fs::path& socket, const ClusterSpec& spec,
                      const std::vector<Machine>& made);

}  // namespace dtrain

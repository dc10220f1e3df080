#include "launcher/provider/machine.hpp"

namespace dtrain {

const char* to_string(MachineState state) noexcept {
  switch (state) {
    case MachineState::pending:
      return "pending";
    case MachineState::running:
      return "running";
    case MachineState::stopping:
      return "stopping";
    case MachineState::stopped:
      return "stopped";
    case MachineState::gone:
      return "gone";
  }
  return "?";
}

Tags tags_of(const std::string& cluster_name, const Machine& machine) {
  return {{"dtrain-cluster", cluster_name},    {"dtrain-cluster-id", machine.cluster.str()},
          {"dtrain-node", machine.node.str()}, {"dtrain-role", machine.head ? "head" : "worker"},
          {"dtrain-type", machine.type},       {"dtrain-launch", machine.launch}};
}

std::optional<Machine> machine_of(const std::string& cluster_name, const Tags& tags) {
  const auto tag = [&](const char* key) {
    const auto found = tags.find(key);
    return found == tags.end() ? std::string() : found->second;
  };
  Machine machine;
  machine.node = NodeId(tag("dtrain-node"));
  if (tag("dtrain-cluster") != cluster_name || !valid_name(machine.node.str())) {
    return std::nullopt;
  }
  machine.cluster = ClusterId(tag("dtrain-cluster-id"));
  machine.head = tag("dtrain-role") == "head";
  machine.type = tag("dtrain-type");
  machine.launch = tag("dtrain-launch");
  return machine;
}

}  // namespace dtrain

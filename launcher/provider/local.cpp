#include "launcher/provider/local.hpp"

#include <algorithm>

#include "launcher/remote/local.hpp"

namespace dtrain {

Machine LocalProvider::machine_of(const NodeId& node) const {
  Machine machine;
  machine.node = node;
  machine.address = "127.0.0.1";
  machine.root = state_ / "nodes" / node.str();
  return machine;
}

std::vector<Machine> LocalProvider::list() {
  std::vector<Machine> machines;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(state_ / "nodes", failed)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory(failed) || !valid_name(name)) continue;
    machines.push_back(machine_of(NodeId(name)));
  }
  // By number: node-10 comes after node-9.
  std::sort(machines.begin(), machines.end(), [](const Machine& a, const Machine& b) {
    const std::string& left = a.node.str();
    const std::string& right = b.node.str();
    return left.size() != right.size() ? left.size() < right.size() : left < right;
  });
  if (!machines.empty()) machines.front().head = true;
  return machines;
}

void LocalProvider::create(const std::vector<Request>& requests, const OutcomeSink& tell) {
  for (const Request& request : requests) {
    for (const NodeId& node : request.nodes) {
      MachineOutcome outcome{machine_of(node), std::nullopt};
      outcome.machine.head = request.head;
      const fs::path& root = outcome.machine.root;
      try {
        make_folders(root);
        std::error_code failed;
        if (!fs::is_directory(root, failed)) {
          throw Error(ErrorCode::conflict, root.string() + " is not a folder");
        }
      } catch (Error& error) {
        outcome.machine.state = MachineState::gone;
        outcome.error = error.while_doing("making the folder of " + node.str());
      }
      tell(outcome);
    }
  }
}

void LocalProvider::release(const std::vector<Machine>& machines, const OutcomeSink& tell) {
  for (const Machine& machine : machines) {
    MachineOutcome outcome{machine, std::nullopt};
    try {
      remove_tree(machine_of(machine.node).root);
      outcome.machine.state = MachineState::gone;
    } catch (Error& error) {
      outcome.error = error.while_doing("removing the folder of " + machine.node.str());
    }
    tell(outcome);
  }
}

std::unique_ptr<Transport> LocalProvider::reach(const Machine&) {
  return std::make_unique<LocalTransport>();
}

std::unique_ptr<Provider> make_local_provider(const ClusterSpec&, const fs::path& state,
                                              const Access&) {
  return std::make_unique<LocalProvider>(state);
}

}  // namespace dtrain

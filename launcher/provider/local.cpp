#include "launcher/provider/local.hpp"

#include <algorithm>

#include "launcher/remote/local.hpp"

namespace dtrain {

std::vector<Machine> LocalProvider::list() {
  std::vector<Machine> machines;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(state_ / "nodes", failed)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory(failed) || !valid_name(name)) continue;
    machines.push_back({NodeId(name), "127.0.0.1", entry.path(), std::nullopt});
  }
  // By number: node-10 comes after node-9.
  std::sort(machines.begin(), machines.end(), [](const Machine& a, const Machine& b) {
    const std::string& left = a.node.str();
    const std::string& right = b.node.str();
    return left.size() != right.size() ? left.size() < right.size() : left < right;
  });
  return machines;
}

std::vector<NodeOutcome> LocalProvider::create(const std::vector<NodeId>& nodes) {
  std::vector<NodeOutcome> outcomes;
  for (const NodeId& node : nodes) {
    NodeOutcome outcome{node, std::nullopt};
    try {
      const fs::path root = state_ / "nodes" / node.str();
      make_folders(root);
      std::error_code failed;
      if (!fs::is_directory(root, failed)) {
        throw Error(ErrorCode::conflict, root.string() + " is not a folder");
      }
    } catch (Error& error) {
      outcome.error = error.while_doing("making the folder of " + node.str());
    }
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

std::vector<NodeOutcome> LocalProvider::release(const std::vector<NodeId>& nodes) {
  std::vector<NodeOutcome> outcomes;
  for (const NodeId& node : nodes) {
    NodeOutcome outcome{node, std::nullopt};
    try {
      remove_tree(state_ / "nodes" / node.str());
    } catch (Error& error) {
      outcome.error = error.while_doing("removing the folder of " + node.str());
    }
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

std::unique_ptr<Transport> LocalProvider::reach(const Machine&) {
  return std::make_unique<LocalTransport>();
}

std::unique_ptr<Provider> make_local_provider(const ClusterSpec&, const fs::path& state,
                                              const Access&) {
  return std::make_unique<LocalProvider>(state);
}

}  // namespace dtrain

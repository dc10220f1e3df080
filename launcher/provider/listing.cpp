#include "launcher/provider/listing.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace dtrain {

void sort_by_node(std::vector<Machine>& machines) {
  std::stable_sort(machines.begin(), machines.end(), [](const Machine& a, const Machine& b) {
    const auto key = [](const Machine& machine) {
      const std::string& node = machine.node.str();
      return std::tuple(!machine.head, node.size(), std::string_view(node));
    };
    return key(a) < key(b);
  });
}

void ask_for_missing(
    const std::vector<Machine>& there, const std::vector<Request>& requests,
    const OutcomeSink& tell,
    const std::function<void(const Request& request, const std::vector<NodeId>& missing)>& ask) {
  std::map<std::pair<ClusterId, NodeId>, const Machine*> live;
  for (const Machine& machine : there) {
    if (is_live(machine.state)) live.emplace(std::pair(machine.cluster, machine.node), &machine);
  }
  for (const Request& request : requests) {
    std::vector<NodeId> missing;
    for (const NodeId& node : request.nodes) {
      const auto found = live.find({request.cluster, node});
      if (found == live.end()) {
        missing.push_back(node);
      } else {
        tell({*found->second, std::nullopt});
      }
    }
    if (!missing.empty()) ask(request, missing);
  }
}

}  // namespace dtrain

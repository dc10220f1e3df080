#include "launcher/cluster/known_nodes.hpp"

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/wire/json.hpp"

namespace dtrain {

std::vector<KnownNode> known_nodes(const std::vector<Machine>& noted,
                                   const std::optional<nlohmann::json>& status) {
  std::vector<KnownNode> known;
  std::map<NodeId, std::size_t> places;
  for (const Machine& machine : noted) {
    places.emplace(machine.node, known.size());
    known.push_back(
        {machine, true, false, status ? KnownNode::Head::silent : KnownNode::Head::unasked});
  }
  if (!status) return known;
  for (const nlohmann::json& node : wire::member(*status, "nodes")) {
    const std::string state = wire::get_string(node, "state");
    if (state == "gone") continue;
    const NodeId name(wire::get_string(node, "node"));
    const auto [place, fresh] = places.emplace(name, known.size());
    if (fresh) {
      KnownNode stranger;
      stranger.machine.node = name;
      stranger.machine.address = wire::get_string(node, "address", "");
      known.push_back(std::move(stranger));
    }
    KnownNode& each = known[place->second];
    each.joined = wire::get_bool(node, "joined", false);
    each.head = state == "lost" ? KnownNode::Head::lost : KnownNode::Head::hears;
  }
  return known;
}

}  // namespace dtrain

#include "launcher/wire/costs.hpp"

#include <algorithm>
#include <set>

#include "launcher/wire/fields.hpp"

namespace dtrain::wire {

BOOST_DESCRIBE_STRUCT(ClusterCosts::Type, (), (name, price, most))
BOOST_DESCRIBE_STRUCT(ClusterCosts::Machine, (), (node, id, type, head, spot, created))
BOOST_DESCRIBE_STRUCT(ClusterCosts, (), (max_per_hour, types, machines))

const ClusterCosts::Type* ClusterCosts::find(const std::string& type) const {
  const auto found =
      std::find_if(types.begin(), types.end(), [&](const Type& each) { return each.name == type; });
  return found == types.end() ? nullptr : &*found;
}

nlohmann::json to_json(const ClusterCosts& costs) {
  return written(costs);
}

ClusterCosts cluster_costs_from_json(const nlohmann::json& json) {
  ClusterCosts costs;
  read(json, costs);
  const auto check = [](const std::optional<double>& price, const char* what) {
    if (price && !(*price >= 0 && *price <= ClusterCosts::kMost)) {
      throw Error(ErrorCode::invalid, std::string("\"") + what + "\" is no number of dollars");
    }
  };
  check(costs.max_per_hour, "max_per_hour");
  std::set<std::string> names;
  for (const ClusterCosts::Type& type : costs.types) {
    check(type.price, "price");
    check(type.most, "most");
    if (!names.insert(type.name).second) {
      throw Error(ErrorCode::invalid, "\"types\" names one twice");
    }
  }
  for (const ClusterCosts::Machine& machine : costs.machines) {
    if (machine.id.empty()) throw Error(ErrorCode::invalid, "\"id\" of a machine is empty");
  }
  return costs;
}

}  // namespace dtrain::wire

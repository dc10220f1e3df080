#include "launcher/wire/costs.hpp"

#include <algorithm>
#include <set>

#include "launcher/wire/fields.hpp"

namespace dtrain::wire {

void fields(Is<ClusterCosts::InstanceType> auto& m, auto&& f) {
  f("name", m.name, "price", m.prices.price, "most", m.prices.most);
}
void fields(Is<ClusterCosts::Type> auto& m, auto&& f) {
  f("name", m.name, "price", m.prices.price, "most", m.prices.most, "instance_types",
    if_set(m.instance_types));
}

void fields(Is<ClusterCosts::Machine> auto& m, auto&& f) {
  f("node", m.node, "id", m.id, "type", m.type, "instance_type", if_set(m.instance_type), "head",
    m.head, "spot", m.spot, "created", m.created);
}

BOOST_DESCRIBE_STRUCT(ClusterCosts, (), (max_per_hour, types, machines))

std::optional<double> ClusterCosts::Type::price_of(const std::string& instance_type,
                                                   bool spot) const {
  const auto found =
      std::find_if(instance_types.begin(), instance_types.end(),
                   [&](const InstanceType& each) { return each.name == instance_type; });
  const Prices& known = found == instance_types.end() ? prices : found->prices;
  return spot ? known.price : known.most;
}

std::optional<double> ClusterCosts::Type::most() const {
  if (!prices.price || !prices.most) return std::nullopt;
  return std::max(*prices.price, *prices.most);
}

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
  const auto check_both = [&](const Prices& prices) {
    check(prices.price, "price");
    check(prices.most, "most");
  };
  check(costs.max_per_hour, "max_per_hour");
  std::set<std::string> names;
  for (const ClusterCosts::Type& type : costs.types) {
    check_both(type.prices);
    for (const ClusterCosts::InstanceType& each : type.instance_types) check_both(each.prices);
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

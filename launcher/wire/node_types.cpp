#include "launcher/wire/node_types.hpp"

#include <algorithm>
#include <set>

#include "launcher/spec/limits.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain::wire {

void fields(Is<NodeTypes::Type> auto& m, auto&& f) {
  f("type", m.name, "cpus", if_set(m.cpus), "gpus", if_set(m.gpus, {0, limits::kGpus}), "memory",
    if_set(m.memory), "resources", if_set(m.resources), "labels", if_set(m.labels));
}
void fields(Is<NodeTypes> auto& m, auto&& f) {
  f("types", m.types, "nodes", if_set(m.nodes));
}

const NodeTypes::Type* NodeTypes::find(const std::string& type) const {
  const auto found =
      std::find_if(types.begin(), types.end(), [&](const Type& each) { return each.name == type; });
  return found == types.end() ? nullptr : &*found;
}

nlohmann::json to_json(const NodeTypes& types) {
  return written(types);
}

NodeTypes node_types_from_json(const nlohmann::json& json) {
  NodeTypes types;
  read(json, types);
  const auto check = [](double amount, const std::string& what, double most) {
    if (amount >= 0 && amount <= most) return;
    throw Error(ErrorCode::invalid, "\"" + what + "\" is no amount");
  };
  std::set<std::string> names;
  for (const NodeTypes::Type& type : types.types) {
    if (!names.insert(type.name).second) {
      throw Error(ErrorCode::invalid, "\"type\" is there twice");
    }
    check(type.cpus.value_or(0), "cpus", limits::kCpus);
    check(type.memory.value_or(0), "memory", static_cast<double>(limits::kMemory));
    for (const auto& [name, amount] : type.resources) {
      check(amount, "resources", static_cast<double>(limits::kMemory));
    }
  }
  return types;
}

}  // namespace dtrain::wire

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

// What the YAML says that nodes of a type have, whoever has made them: what `up` says of it, for
// the head places by it (POST /v1/node_types).
namespace dtrain::wire {

struct NodeTypes {
  struct Type {
    std::string name;
    // In place of what the node itself says: of GPUs and bytes no more than it has.
    std::optional<double> cpus;
    std::optional<int> gpus;
    std::optional<double> memory;
    std::map<std::string, double> resources;  // by names of the user's own
    std::map<std::string, std::string> labels;
    bool operator==(const Type&) const = default;
  };

  std::vector<Type> types;
  // Types of those that an `up` has made; who joins by itself brings its own.
  std::map<std::string, std::string> nodes;

  const Type* find(const std::string& type) const;  // null: nothing is said of it
  bool operator==(const NodeTypes&) const = default;
};

nlohmann::json to_json(const NodeTypes& types);
// Error(invalid) names what is wrong.
NodeTypes node_types_from_json(const nlohmann::json& json);

}  // namespace dtrain::wire

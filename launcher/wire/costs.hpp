#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"

// What a cluster's machines cost, where its provider takes money: what `up` says of it, for the
// head asks for no prices (POST /v1/costs). All in US dollars an hour.
namespace dtrain::wire {

struct ClusterCosts {
  static constexpr double kMost = 1e9;

  // Of one machine; absent: not known.
  struct Type {
    std::string name;
    std::optional<double> price;
    std::optional<double> most;  // where one of another kind may take its place: what that costs

    bool operator==(const Type&) const = default;
  };
  // That an `up` has made. The head sees by itself those that it asks for.
  struct Machine {
    NodeId node;
    std::string id;  // the provider's
    std::string type;
    bool head = false;
    bool spot = false;
    WallTime created{};

    bool operator==(const Machine&) const = default;
  };

  std::optional<double> max_per_hour;  // the head asks for nothing beyond
  std::vector<Type> types;             // the head's too
  std::vector<Machine> machines;       // all of them

  const Type* find(const std::string& type) const;
  bool operator==(const ClusterCosts&) const = default;
};

nlohmann::json to_json(const ClusterCosts& costs);
// Error(invalid) names what is wrong.
ClusterCosts cluster_costs_from_json(const nlohmann::json& json);

}  // namespace dtrain::wire

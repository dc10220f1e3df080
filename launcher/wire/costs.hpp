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

// An hour of a machine; absent: not known.
struct Prices {
  std::optional<double> price;  // as it is asked for first
  std::optional<double> most;   // of what may take its place: on demand where there is no spot
  bool operator==(const Prices&) const = default;
};

struct ClusterCosts {
  static constexpr double kMost = 1e9;

  // One of the provider's.
  struct InstanceType {
    std::string name;
    Prices prices;
    bool operator==(const InstanceType&) const = default;
  };
  struct Type {
    std::string name;
    Prices prices;                             // `most`: of all that a machine of it may be
    std::vector<InstanceType> instance_types;  // where it may be one of several

    // Of one that there is; `instance_type` is empty where that is not known.
    std::optional<double> price_of(const std::string& instance_type, bool spot) const;
    // Of one that is asked for: at most.
    std::optional<double> most() const;
    bool operator==(const Type&) const = default;
  };
  // That an `up` has made. The head sees by itself those that it asks for.
  struct Machine {
    NodeId node;
    std::string id;  // the provider's
    std::string type;
    std::string instance_type;
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

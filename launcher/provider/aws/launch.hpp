#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain::aws {

// What RunInstances is told of a type, beside how many, who they are and what they start with.
struct Launch {
  struct Place {
    std::string zone;                                  // for people: "us-west-2a"
    nlohmann::json config = nlohmann::json::object();  // what of `config` is another there
  };
  nlohmann::json config = nlohmann::json::object();
  std::vector<Place> places;  // tried in this order; empty: EC2 chooses
  std::string settings;       // boot_data()'s, as the next
  std::string user;
  Tags tags;              // of instances, besides those that say whose they are
  std::string wrong;      // why there can be none
  bool is_fresh = false;  // it names what was just made, and may not be known everywhere yet
};

// The same again; throws Error(invalid) that names what is wrong.
nlohmann::json to_json(const Launch& launch);
Launch launch_from_json(const nlohmann::json& json);

// A type's node_config without what is null, which is as good as absent.
nlohmann::json config_of(const NodeType& type);
// Empty where it is none.
std::string text_of(const nlohmann::json& config, const char* name);
// Its instance types in the order in which they are tried; the first is empty where a template
// alone says it.
std::vector<std::string> instance_types_of(const NodeType& type, const nlohmann::json& config);
// What the YAML has can never be, whenever it is asked for.
bool is_wrong(const Error& error);

}  // namespace dtrain::aws

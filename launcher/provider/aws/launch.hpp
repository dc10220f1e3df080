#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/provider/machine.hpp"

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
  bool is_fresh = false;  // it names what was just made, and may not be known everywhere yet
};

// The same again; throws Error(invalid) that names what is wrong.
nlohmann::json to_json(const Launch& launch);
Launch launch_from_json(const nlohmann::json& json);

}  // namespace dtrain::aws

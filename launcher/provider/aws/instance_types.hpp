#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

// What an instance of a type has.
struct InstanceType {
  int cpus = 0;
  int gpus = 0;
  std::uint64_t memory = 0;  // bytes, of which the system keeps some
};

// What each of these has at least; an empty name is none. Throws ApiError, Error(not_found) where
// there is none of a name.
InstanceType least_of(Client& client, const std::vector<std::string>& names);

}  // namespace dtrain::aws

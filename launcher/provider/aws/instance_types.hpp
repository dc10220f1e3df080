#pragma once

#include <cstdint>
#include <string>

#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

// What an instance of a type has.
struct InstanceType {
  int cpus = 0;
  int gpus = 0;
  std::uint64_t memory = 0;  // bytes, of which the system keeps some
};

// Throws ApiError, Error(not_found) where there is none of that name.
InstanceType instance_type(Client& client, const std::string& name);

}  // namespace dtrain::aws

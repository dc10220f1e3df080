#pragma once

#include <string>

namespace dtrain::wire {

// A network interface of a machine.
struct Interface {
  std::string name;
  std::string address;  // numeric; link-local and loopback ones are left out

  bool operator==(const Interface&) const = default;
};

}  // namespace dtrain::wire

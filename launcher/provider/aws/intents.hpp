#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"

namespace dtrain::aws {

// One request for instances, on disk before it is made, so that whoever comes after a crash or a
// lost answer knows what there may be.
struct Intent {
  std::string token;  // the request's ClientToken, and a tag of what it makes
  ClusterId cluster;
  std::string type;
  std::string zone;
  std::string launch;
  bool head = false;
  bool joins = false;            // the head asks for them
  std::vector<NodeId> nodes;     // the k-th instance is the k-th node
  WallTime asked;                // when
  std::vector<std::string> ids;  // of its instances, once they are known; in the nodes' order
};

// A folder of them, 0700. One thread at a time. Throw Error.
class Intents {
 public:
  explicit Intents(fs::path folder) : folder_(std::move(folder)) {}

  void write(const Intent& intent);
  void remove(const std::string& token);
  std::vector<Intent> all() const;  // the oldest first

 private:
  fs::path folder_;
};

}  // namespace dtrain::aws

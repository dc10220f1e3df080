#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cluster/state.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

// What `up` found before it did anything.
struct UpObserved {
  std::optional<ClusterState> state;
  bool watch_lives = false;
  bool all_ready = false;  // the head answers and every promised node is ready
};

enum class UpAction : std::uint8_t {
  nothing,      // it is up as asked
  wait,         // its processes run: only wait until every node is ready
  start_watch,  // it is prepared, its watch is not there
  build,        // from nothing (what an interrupted `up` left is cleared first)
  refuse,       // it is up in another shape
};
struct UpPlan {
  UpAction action = UpAction::nothing;
  std::string reason;
};

// Pure. `wanted` and the spec in the state are compared by what a running cluster cannot change.
UpPlan plan_up(const ClusterSpec& wanted, const UpObserved& observed);

struct UpOptions {
  fs::path agent;
  std::chrono::milliseconds ready_limit{30000};
  std::function<void(const std::string&)> say = [](const std::string&) {};  // steps, for people
  std::function<void(const std::string&)> evidence = [](const std::string&) {};  // lines of logs
};

struct UpReport {
  UpAction action = UpAction::nothing;
  std::string name;
  ClusterId id;
  std::vector<Machine> nodes;
  fs::path state;
};

// Brings the cluster up, or finds that it is. Takes the cluster's lock. Throws Error; what was
// built until then is cleared away again, unless processes were started: those stay, to be looked
// at, and the next `up` or `down` goes on from there.
UpReport up(const ClusterSpec& spec, const UpOptions& options);

}  // namespace dtrain

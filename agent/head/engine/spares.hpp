#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/head/engine/placement.hpp"

// Which nodes are kept as spares of running jobs: pure.
namespace dtrain::head {

struct SpareWant {
  JobId job;
  int priority = 0;
  std::int64_t order = 0;  // of submission
  Demand demand;           // the job's; a spare has room for one node of it
  std::size_t count = 0;
  std::set<NodeId> not_on;    // its own nodes, and those that could not be prepared for it
  std::vector<NodeId> has{};  // that it has already: it keeps them while they are as they should be
  bool takes_new = true;      // in the place of those that are not, too
};

struct SpareDecision {
  std::map<JobId, std::vector<PlacedShare>> spares;
  std::map<JobId, std::string> reasons;  // of those that have fewer than they want
};

// `nodes` with all that runs there and is kept for others but spares. By priority, then by age:
// first each keeps what it has, then each takes what is free. Those of `away` are not connected at
// the moment: they are no new spares, and stay those that they are.
SpareDecision decide_spares(std::vector<NodeCapacity> nodes, const std::set<NodeId>& away,
                            std::vector<SpareWant> wants);

}  // namespace dtrain::head

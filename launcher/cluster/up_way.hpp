#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/cluster/up.hpp"

// What `up` does with machines of one kind. up.cpp has what is the same for all of them.
namespace dtrain {

// One `up`: the cluster's lock is held.
struct UpRun {
  const ClusterSpec& spec;
  const UpOptions& options;
  fs::path folder;  // the cluster's, here
  std::shared_ptr<Provider> provider;
  std::optional<ClusterState> before;  // as it was remembered
  ClusterPlan plan;                    // of machines
  ClusterState state;                  // as it is now; without an id: there is no cluster yet
  UpReport report;
};

// The plan of machines as the provider and `known` now have it.
ClusterPlan plan_machines(const UpRun& run, const std::vector<Machine>& known,
                          const std::set<std::string>& made = {});
// Does that part of run.plan which makes machines, told as progress: an outcome for each node that
// is wanted, the head first.
std::vector<MachineOutcome> make_wanted(UpRun& run);

// Promised nodes that are not ready as the head says, each with its reason; absent when the head
// does not answer.
using NotReady = std::optional<std::map<NodeId, std::string>>;
NotReady nodes_not_ready(const fs::path& socket, const std::string& cluster,
                         const std::vector<Machine>& nodes);

class UpWay {
 public:
  virtual ~UpWay() = default;

  // Looks at what is there, makes, prepares and starts what is missing. False: it ends here, with
  // what the report says: a dry run, or there is no head.
  virtual bool bring_up() = 0;
  // Those that the head is to call ready; the rest are methods for after bring_up().
  virtual std::vector<Machine> awaited() const = 0;
  // Asked again and again until true: all of them are, or it was long enough. May throw Error.
  virtual bool joined(const NotReady& missing, std::chrono::milliseconds waited) = 0;
  // The head's API, as this machine meets it.
  virtual fs::path socket() const = 0;
  // The rest, and what is reported as done; `told` says that the settings were news to the head.
  virtual void finish(bool told) = 0;
};

std::unique_ptr<UpWay> local_up(UpRun& run);
std::unique_ptr<UpWay> hosts_up(UpRun& run);

// `what` must be taken down first.
Error in_the_way(const std::string& cluster, const std::string& what);

}  // namespace dtrain

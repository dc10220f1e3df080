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
  std::optional<ClusterState> before;   // as it was remembered
  std::vector<KnownNode> known;         // before
  std::vector<Machine> there;           // before, as the provider lists them
  ClusterPlan plan;                     // of machines
  std::map<std::string, Offer> offers;  // that were asked for, by type
  ClusterState state;                   // as it is now; without an id: there is no cluster yet
  UpReport report;
  std::function<void()> let_go = [] {};  // of the cluster's lock: nothing is written here any more
};

// The plan of machines, with what those are known to be that it creates.
ClusterPlan plan_machines(UpRun& run, const SeenNodes& seen);
// Asks for what run.plan creates: what is known of each node that is wanted, the head first.
std::vector<MachineOutcome> ask_for_wanted(UpRun& run);
// Tells what a provider says of machines as their nodes' progress; failures are told by whoever
// gives the node up.
OutcomeSink machine_teller(const UpRun& run);

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
  // Those that the head is to call ready, as many as are started by now; the rest are methods for
  // after bring_up().
  virtual std::vector<Machine> awaited() const = 0;
  // Asked again and again, with what the head says of the awaited, until true: none is to come, and
  // all of them are ready, or it was long enough. May throw Error.
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

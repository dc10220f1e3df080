#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "launcher/provider/machine.hpp"
#include "launcher/spec/cluster_spec.hpp"

// Which machines a cluster needs, has, and gives back. All of it is pure: `up` and whoever else
// decides this asks the provider and the head before, and does what was decided after.
namespace dtrain {

struct WantedNode {
  NodeId node;  // empty: any machine of this type
  std::string type;
  std::string launch;
  bool head = false;
};
// The head first.
std::vector<WantedNode> wanted_nodes(const ClusterSpec& spec);

// What machines of a type are made by, as one word: its node_config and the provider's own keys.
// Not part of it: how many there are, files, setup, what they are called. Empty for no type.
std::string launch_hash(const ClusterSpec& spec, const std::string& type);

// A node that the head, or this machine's notes, count among theirs.
struct KnownNode {
  enum class Head : std::uint8_t {
    unasked,  // or does not answer
    silent,   // does not count it among its own
    hears,    // or has heard it not long ago
    lost,     // has not heard it for so long that it gave it up
  };
  Machine machine;
  bool noted = false;   // in the notes: brought up from here
  bool joined = false;  // by itself: no `up` has asked for it
  Head head = Head::unasked;
};

struct SeenNodes {
  std::vector<Machine> there;  // as the provider says
  std::vector<KnownNode> known;
  std::set<std::string> made;  // of `there`, provider's ids of what this very `up` has asked for
};

enum class NodeAction : std::uint8_t { keep, start, create, replace, release };
const char* to_string(NodeAction action) noexcept;

struct NodePlan {
  NodeAction action = NodeAction::keep;
  // With `create`: what is to be asked for. Without a machine behind it (state gone, and release):
  // a node that only leaves the cluster.
  Machine machine;
  std::string reason;
  bool stale = false;  // kept, though it was made by another launch configuration than is wanted
};

struct ClusterPlan {
  ClusterId cluster;            // as its machines say; empty: they do not, or there is none yet
  std::vector<NodePlan> nodes;  // those that are wanted, the head first; then those that go
  std::string refused;          // why none of this may be done; empty: it may
  std::vector<std::string> warnings;  // of nodes that stay, though nobody here asks for them
};

// A machine that is pending or running is there, and so is one that is stopped, which is started
// where no other does; one that is stopping is not, and its name is not given again. What a
// provider lists may be older than what the head sees: a machine of the notes that it does not list
// at all is there while the head hears its node, and stays in the notes while the head cannot be
// asked. Nodes that joined by themselves, and nodes that only the head knows, are neither wanted
// nor released; where too few are there of what is wanted, machines that the head has asked for
// take their places. `replace`: machines of another launch configuration than is wanted give way,
// the head's aside, which holds what the cluster knows.
//
// Two `up` at once may ask for the same. Then the machine that the provider made first stays, the
// other goes; both of them come to this, as both ask again after they have made some.
ClusterPlan decide(const std::vector<WantedNode>& wanted, const SeenNodes& seen, bool replace);

bool has_action(const ClusterPlan& plan, NodeAction action);

}  // namespace dtrain

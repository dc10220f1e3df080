#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/remote/transport.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

// One machine of a cluster.
struct Machine {
  NodeId node;
  std::string address;  // as the other nodes reach it
  fs::path root;        // the node's root there
};

// What became of an operation on one node. An operation on N nodes gives N of these: one failure
// does not throw away the others.
struct NodeOutcome {
  NodeId node;
  std::optional<Error> error;  // absent: done
};

// Where nodes come from. Knows machines, not agents: what is put on them is launcher/cluster's.
class Provider {
 public:
  virtual ~Provider() = default;

  // The machines of this cluster that exist now, by node name. Asks the world, not our notes.
  virtual std::vector<Machine> list() = 0;
  // Makes what is missing of `nodes`; one that is there is left as it is.
  virtual std::vector<NodeOutcome> create(const std::vector<NodeId>& nodes) = 0;
  // Gives the machines back, with all that is on them; one that is gone is fine.
  virtual std::vector<NodeOutcome> release(const std::vector<NodeId>& nodes) = 0;

  virtual std::unique_ptr<Transport> reach(const Machine& machine) = 0;

  // Where the head keeps its files, on the machine of the head's node.
  virtual fs::path head_root() const = 0;
};

// All providers by name, built or not.
struct ProviderEntry {
  ProviderKind kind;
  const char* name;
  // Null: known, and not built yet. `state` is the cluster's folder on this machine.
  std::unique_ptr<Provider> (*make)(const ClusterSpec& spec, const fs::path& state);
};
std::span<const ProviderEntry> providers() noexcept;

// Throws Error(invalid), at the YAML's `provider` line where the file is known, when that provider
// is not built yet.
std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state);

}  // namespace dtrain

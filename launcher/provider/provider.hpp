#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/remote/transport.hpp"
#include "launcher/spec/cluster_spec.hpp"

namespace dtrain {

class SshShared;

// One machine of a cluster.
struct Machine {
  NodeId node;
  std::string address;           // as the other nodes reach it
  fs::path root;                 // the node's root there; empty: not known yet
  std::optional<HostSpec> host;  // how ssh reaches it, where it does
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

  // Throws Error that names the machine. From several threads at once. One that let nobody in is
  // not tried again: the same error at once.
  virtual std::unique_ptr<Transport> reach(const Machine& machine) = 0;

  // Breaks all connections, so that what waits for a machine ends. Any thread.
  virtual void hang_up() {}
};

// What reaching machines needs of the person at the terminal.
struct Access {
  std::shared_ptr<SshShared> ssh;                // null: nobody is asked anything
  bool accept_new_host_keys = false;             // unknown ones are pinned without asking
  std::stop_token stop;                          // ends what waits
  std::function<void(const std::string&)> warn;  // from any thread; may be empty
  // How it stands with a machine that is being reached; absent: that is over. Likewise.
  std::function<void(const NodeId&, const std::optional<ReachTry>&)> reaching;
  // For how long one that has let nobody in is tried, whatever keeps it from that. Absent: 30 s at
  // most, and less where trying again seldom helps (nothing listens there, nobody answers).
  std::optional<std::chrono::milliseconds> reach_limit;
};

// All providers by name, built or not.
struct ProviderEntry {
  ProviderKind kind;
  const char* name;
  // Null: known, and not built yet. `state` is the cluster's folder on this machine.
  std::unique_ptr<Provider> (*make)(const ClusterSpec& spec, const fs::path& state,
                                    const Access& access);
};
std::span<const ProviderEntry> providers() noexcept;

// Throws Error(invalid), at the provider's type in the YAML where that is known, when that provider
// is not built yet.
std::unique_ptr<Provider> make_provider(const ClusterSpec& spec, const fs::path& state,
                                        const Access& access = {});

}  // namespace dtrain

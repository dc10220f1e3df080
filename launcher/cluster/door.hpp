#pragma once

#include <memory>
#include <optional>

#include "launcher/cluster/state.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain {

// The way to a cluster's head from here, held open: its API's socket as this machine meets it, and
// what carries it there.
class HeadDoor {
 public:
  // DTRAIN_HEAD_SOCKET goes before all (for tests). Throws Error(unreachable) when there is no such
  // cluster, or its head's machine cannot be reached.
  static HeadDoor open(const std::string& cluster_name, const Access& access);
  // Over connections that `provider` has; it must outlive the door.
  static HeadDoor open(const ClusterState& state, Provider& provider);

  const fs::path& socket() const noexcept { return socket_; }

 private:
  fs::path socket_;
  std::unique_ptr<Provider> provider_;
  std::unique_ptr<Transport> transport_;
};

// A provider for the machines of a cluster that is up, from its notes alone.
std::unique_ptr<Provider> provider_of(const ClusterState& state, const Access& access);

// provider.root of its YAML, for OpenNode; empty for the default.
std::string base_of(const ClusterState& state);

// What the machine of a head knows of the YAML's cluster, of machine.cluster where that is not
// empty; absent when it has none. Throws Error.
std::optional<ClusterState> cluster_on(const Machine& machine, const ClusterSpec& spec,
                                       Provider& provider, const fs::path& agent);

// Learns of a cluster that was brought up from another machine, as `up` would find it: by the plan
// of its machines, and from the head's. Writes cluster.json, where nobody did meanwhile. Absent
// when there is no such cluster; a host that has nothing of ours is left so. Throws Error when a
// host cannot be reached, and Error(conflict) when `up` would be refused; not so `to_end`, for
// `down`. Machines that were made are the cluster's by their tags, whether their head can be
// reached or not: `up` and `down` go on from there.
std::optional<ClusterState> adopt(const ClusterSpec& spec, Provider& provider,
                                  const fs::path& agent, bool to_end = false,
                                  const Access& access = {});
std::optional<ClusterState> adopt(const ClusterSpec& spec, const fs::path& agent,
                                  const Access& access, bool to_end = false);

}  // namespace dtrain

#pragma once

#include <string>
#include <vector>

#include "launcher/cluster/state.hpp"
#include "launcher/core/files.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/cluster_spec.hpp"
#include "launcher/wire/session.hpp"

namespace dtrain {

struct SetupLog {
  std::string list;  // initialization, head_setup, worker_setup
  std::string text;  // the end of it, at most kSetupLogText bytes
};
inline constexpr std::size_t kSetupLogText = std::size_t{256} << 10;

// What runs on a node before it is ready, in order.
std::vector<wire::SetupList> setup_lists(const ClusterSpec& spec, bool head);

// Reads them from the machine itself, whether its agents run or not. Throws Error when it cannot be
// reached.
std::vector<SetupLog> read_setup_logs(const ClusterState& state, const Machine& machine,
                                      const fs::path& agent, const Access& access);

}  // namespace dtrain

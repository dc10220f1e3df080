#pragma once

#include <memory>
#include <optional>

#include "launcher/cluster/head_desk.hpp"
#include "launcher/cluster/parcels.hpp"
#include "launcher/cluster/up.hpp"
#include "launcher/remote/agent_session.hpp"

// One machine's share of an `up`: looked at, and brought to where it should be, step by step. Each
// step compares with what the machine itself has and does what differs, so that going through all
// of them again, after a broken connection or in the next `up`, goes on from where it was.
namespace dtrain {

struct NodeTask {
  Machine machine;
  bool head = false;
  std::optional<ClusterId> known;  // this machine remembers the cluster by this id
  // Of many machines: they give each other the agent, and the user's files.
  std::shared_ptr<Spread> spread;
  std::shared_ptr<Parcels> parcels;
};

// Never throws: what fails is in the result. One thread a machine.
NodeUp bring_up_node(const ClusterSpec& spec, const UpOptions& options, Provider& provider,
                     const std::shared_ptr<const AgentBinary>& binary, HeadDesk& desk,
                     const NodeTask& task);

}  // namespace dtrain

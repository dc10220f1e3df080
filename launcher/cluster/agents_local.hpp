#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/cluster/up.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/remote/transport.hpp"

// The agents of provider local: one watch for the head and all nodes. `folder` is the cluster's.
// All throw Error.
namespace dtrain {

// Watch, head and node agents that run.
std::vector<FoundProcess> running_agents(const fs::path& folder);

// Why those give way to options.agent; empty: they do not.
std::string why_replace(const std::vector<FoundProcess>& running, const UpOptions& options);

// Error(conflict) when options.agent is older than those that run or ran last, unless told to.
void check_versions(const fs::path& folder, const std::vector<FoundProcess>& running,
                    const UpOptions& options);

// What the watch is to keep alive: head and nodes, all of them state.agent.
void write_watch(const ClusterState& state, const fs::path& folder, Transport& head);

// A new watch, which runs `agent` and whose children take over when the old agents have ended;
// supervisors and ranks go on.
void replace_agents(const fs::path& folder, const fs::path& agent,
                    const std::function<void()>& start_watch);

}  // namespace dtrain

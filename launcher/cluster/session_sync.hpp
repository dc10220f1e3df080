#pragma once

#include <string>
#include <vector>

#include "launcher/files/sync.hpp"
#include "launcher/remote/agent_session.hpp"
#include "launcher/spec/cluster_spec.hpp"

// File sync over a session that is open.
namespace dtrain {

// The YAML's file_mounts, by its rules of what is left out. `overwrite`: as SyncMount's.
std::vector<SyncMount> mounts_of(const ClusterSpec& spec, bool overwrite);

// As send_trees().
SyncOutcome sync_to(AgentSession& session, const std::vector<SyncMount>& mounts,
                    const SendOptions& options);

// Brings the paths from there into `folder`, which is emptied first: the i-th as folder/i. Returns
// the folder.
fs::path fetch_from(AgentSession& session, const std::vector<std::string>& paths,
                    const fs::path& folder);

}  // namespace dtrain

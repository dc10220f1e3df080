#pragma once

#include <string>
#include <vector>

#include "launcher/files/sync.hpp"
#include "launcher/remote/agent_session.hpp"

// File sync over a session that is open.
namespace dtrain {

// As send_trees().
SyncOutcome sync_to(AgentSession& session, const std::vector<SyncMount>& mounts,
                    const SendOptions& options);

// Brings the paths from there into `folder`, which is emptied first: the i-th as folder/i. Returns
// the folder.
fs::path fetch_from(AgentSession& session, const std::vector<std::string>& paths,
                    const fs::path& folder);

}  // namespace dtrain

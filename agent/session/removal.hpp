#pragma once

#include "agent/session/place.hpp"

// What `down` must know of a node's leavings, and their end.
namespace dtrain::session {

wire::SurveyReport survey(const NodePlace& place, const wire::Survey& request);

// Agents' binaries that nobody runs and no cluster of this user would start, an hour after they
// came; none where the home is on the network. What hinders that, in words.
std::string remove_old_agents(const NodePlace& place, const wire::HostFacts& host);

// Root, head's root, sockets and unit; the cluster's folder with the last of its nodes here; and
// with the last cluster of this user the agents' binaries that nobody runs, this session's too. Of
// a home on the network only the head's own removal takes anything.
wire::RemoveReport remove_files(const NodePlace& place, const wire::RemoveFiles& request,
                                const wire::HostFacts& host);

}  // namespace dtrain::session

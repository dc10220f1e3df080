#pragma once

#include <vector>

#include "agent/session/place.hpp"

// The agents of one node: watch, and below it head and node. Each node has a watch of its own, in
// its root; the head's node's starts the head too.
namespace dtrain::session {

// What runs of this node, and with `head` of the head, the session itself aside.
std::vector<wire::AgentProcess> running_agents(const NodePlace& place, bool head);

// Watch, node and, with `head`, head run, in this binary, and are the ones that were asked for.
bool agents_current(const NodePlace& place, bool head);

// Writes what a watch of the node alone is to keep; for one that the caller becomes.
void write_watch(const NodePlace& place);

// Starts them, or replaces those that run by others of this binary: a new watch, whose children
// take over when the old ones have ended; supervisors and ranks are not touched. Returns when the
// new watch lives. Error(failed) with the watch's last lines when it does not.
wire::AgentsStarted start_agents(const NodePlace& place, const wire::StartAgents& request,
                                 const wire::HostFacts& host);

wire::StopReport stop_agents(const NodePlace& place, const wire::StopAgents& request);

// With systemd's unit from now on, or without. Agents that run go on under the other.
wire::PersistReport persist(const NodePlace& place, bool on, const wire::HostFacts& host);

wire::LogTails read_logs(const NodePlace& place, const wire::ReadLogs& request);

}  // namespace dtrain::session

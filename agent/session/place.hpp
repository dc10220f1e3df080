#pragma once

#include <map>
#include <string>

#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/session.hpp"

// Where a node's things are on this machine, and what is there.
namespace dtrain::session {

struct NodePlace {
  ClusterId cluster;
  NodeId node;
  fs::path base;  // holds the folders of all clusters
  fs::path home;
  fs::path program;  // the agent that runs this

  fs::path folder() const { return base / cluster.str(); }
  paths::NodeRoot root() const { return {folder() / node.str()}; }
  paths::WatchRoot watch() const { return {folder() / node.str()}; }
  fs::path sync_records() const { return paths::sync_records(home, cluster); }
  paths::HeadRoot head() const { return {folder() / "head"}; }
};

// Error(invalid) for a base that is none, and for a node that would be called as the head is;
// Error(denied) where the spare base is another's.
NodePlace place_of(const wire::OpenNode& which, const wire::HostFacts& host,
                   const fs::path& program);

// Where others may put folders too, those whose heads are real folders of this user.
wire::FoundClusters find_clusters(const wire::FindClusters& which, const wire::HostFacts& host);

// Throws Error(not_found) when the head's root holds no head.
wire::HeadFound describe_head(const paths::HeadRoot& root);

wire::NodeFound open_node(const NodePlace& place, const wire::OpenNode& which);

wire::Configured configure_node(const NodePlace& place, const wire::ConfigureNode& parts);

std::map<std::string, std::string> read_marks(const paths::NodeRoot& root);

}  // namespace dtrain::session

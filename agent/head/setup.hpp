#pragma once

#include <string>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/spec/storage_spec.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/node_types.hpp"

namespace dtrain::head {

// head.json: what the head was told at `up`, and the port it found.
struct HeadConfig {
  ClusterId cluster;
  std::string name;
  std::string provider;
  int expected_nodes = 1;
  int wanted_port = 0;  // provider.head_port; 0: the first free one of kFirstPort to kLastPort
  int port = 0;         // where it listens, kept over restarts; 0: not yet
  bool ranks_on_head = true;  // its own machine takes ranks
  bool moves = false;         // turn.hpp
  // As the newest `up` told the running head; init_head() keeps them.
  StorageSpec storage = {};
  wire::NodeTypes node_types = {};

  // Its nodes are all on this machine: nobody else finds even a port.
  bool is_local() const { return provider == "local"; }
};

// What is tried where no port is wished for: registered for nothing, and below the ports that
// kernels give to whoever asks for any (Linux: from 32768 on).
inline constexpr int kFirstPort = 28500;
inline constexpr int kLastPort = 28599;

HeadConfig read_head_config(const paths::HeadRoot& root);
void write_head_config(const paths::HeadRoot& root, const HeadConfig& config);

// The head's half of `up`, each a command of dtrain-agent, each harmless when repeated.

// Makes the CA, the head's own identity and head.json; with other machines it chooses the port too,
// which their nodes are told before the head runs.
void init_head(const paths::HeadRoot& root, const HeadConfig& config);
// Signs a node's request and lets the node in from now on. Returns its certificate and the CA's.
// Error(conflict) for a name that a join credential has.
std::string sign_node(const paths::HeadRoot& root, const NodeId& node,
                      const std::string& request_pem);
// The certificates alone, for a node that is not let in yet.
std::string sign_new(const paths::HeadRoot& root, const NodeId& node,
                     const std::string& request_pem, WallTime now);
// The node may come from now on.
void let_in(const paths::HeadRoot& root, const NodeId& node);
// A key of role `join` for that node, and its certificate. How long it counts is not in there.
wire::CertifiedKey join_credential(const paths::HeadRoot& root, const NodeId& node, WallTime now);
// A certificate for a node that has one and is let in, as sign_node returns it.
std::string sign_again(const paths::HeadRoot& root, const NodeId& node,
                       const std::string& request_pem, WallTime now);
// A new certificate for the head itself when half of the old one's life is over; true if so.
bool renew_head(const paths::HeadRoot& root, WallTime now);
// The node may come no more, its join credential neither.
void shut_out(const paths::HeadRoot& root, const NodeId& node);
// Whether a node may come; a node that is not let in, or no more, may not, whatever it can show.
// Throws Error(io) where that cannot be seen.
bool is_let_in(const paths::HeadRoot& root, const NodeId& node);

}  // namespace dtrain::head

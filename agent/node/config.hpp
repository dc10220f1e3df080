#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"

namespace dtrain::node {

// node.json: who this node is and where its head is. Written by `up`.
//   {"cluster": "…", "node": "node-0", "address": "127.0.0.1",
//    "interface": "eth1" (optional),
//    "head": {"file": "/…/head.json"} or {"addresses": ["10.0.0.1"], "port": 28500,
//             "place": "/…/place" (optional)}}
struct NodeConfig {
  ClusterId cluster;
  NodeId node;
  std::string address;    // as other nodes reach this one; empty: by which it reaches the head
  std::string interface;  // for Gloo and NCCL; empty: the one that has the address
  std::string head_file;  // on the head's own machine: its head.json, read at each dial
  std::vector<std::string> head_addresses;
  int head_port = 0;
  // Of a head that moves: "PORT ADDRESS…", read at each dial; where it cannot be, the above count.
  std::string head_place;
};

// Throws Error with the file's path.
NodeConfig read_node_config(const paths::NodeRoot& root);

struct HeadPlace {
  std::vector<std::string> addresses;
  int port = 0;
};
// What a head that moves says of itself in such a file; absent: nothing that can be read.
std::optional<HeadPlace> told_place(const fs::path& file);
// Where to dial now. Error(unreachable) while the head has not said its port yet.
HeadPlace head_place(const NodeConfig& config);

// The node's half of `up`, each a command of dtrain-agent. All work on the node's root.

// Makes the node's key and prints a certificate request.
std::string init_node(const paths::NodeRoot& root, const ClusterId& cluster, const NodeId& node);
// Takes the certificate and the CA's, one PEM behind the other, and keeps them.
void install_identity(const paths::NodeRoot& root, const std::string& pems);
// The same for another key, all in one step: an agent that dies meanwhile has the one or the other.
// Error(denied) when the certificate is not for that key.
void renew_identity(const paths::NodeRoot& root, const std::string& key_pem,
                    const std::string& pems);
// Runs the user's login shell once and keeps its environment in login_env; /bin/sh's when the login
// shell fails or takes longer than 10 s. Returns a warning, empty when all went well.
std::string capture_environment(const paths::NodeRoot& root);
// login_env as NAME=VALUE; this process's own when there is none.
std::vector<std::string> login_environment(const paths::NodeRoot& root);

}  // namespace dtrain::node

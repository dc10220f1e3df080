#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/head/server/node_connections.hpp"
#include "launcher/wire/frames.hpp"

// `exec` and `attach`: joins a client's WebSocket to commands on nodes. All on the io_context's
// thread.
namespace dtrain::head {

class ExecHub {
 public:
  ExecHub(boost::asio::io_context& context, NodeConnections& nodes);

  // Those on which something of a client's runs, or a port is forwarded.
  std::set<NodeId> nodes() const;
  void on_end(std::function<void()> end) { end_ = std::move(end); }  // of one of these

  // One client, from its first frame to the end (docs/api.md, Exec).
  boost::asio::awaitable<void> serve(wire::FrameStreamPtr client);
  // One client whose binary frames are a connection to a port of a node's loopback (Forward). An
  // empty name is the head's node.
  boost::asio::awaitable<void> forward(wire::FrameStreamPtr client, NodeId node, int port);

 private:
  struct Client;
  struct Running {
    std::shared_ptr<Client> client;
    NodeId node;
  };
  // A list of names, "all", or "head": those that are connected. Throws Error(not_found), or
  // Error(unreachable) when none is.
  std::vector<NodeId> nodes_of(const nlohmann::json& wanted) const;
  // The same, once those that have just joined can be told something.
  boost::asio::awaitable<std::vector<NodeId>> nodes_that_joined(nlohmann::json wanted);
  void from_node(const NodeId& node, const wire::BulkMessage& message, std::string& bytes);
  // Passes on what the client says until it goes away.
  boost::asio::awaitable<void> pass_on(std::shared_ptr<Client> client);
  void hang_up(Client& client);
  void node_gone(const NodeId& node);
  void finish(const std::string& exec, nlohmann::json exit);
  void forget(const std::string& exec);
  // Credit for the output that is on its way to the client, once most of it is there.
  boost::asio::awaitable<void> return_output_credit(std::shared_ptr<Client> client);

  boost::asio::io_context& context_;
  NodeConnections& nodes_;
  std::map<std::string, Running> running_;
  std::function<void()> end_;
  std::set<boost::asio::steady_timer*> waiting_;  // for a node's bulk connection
};

}  // namespace dtrain::head

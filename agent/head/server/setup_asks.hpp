#pragma once

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <string>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/node_connections.hpp"

// Asks nodes for the logs of their setup, for `dtrain logs --setup`. All on the io_context's
// thread.
namespace dtrain::head {

class SetupAsks {
 public:
  SetupAsks(boost::asio::io_context& context, NodeConnections& nodes);

  // Answers {"node", "logs": [{"name", "text"}…]}, or {"error"} when the node goes away or says
  // nothing for 10 s. Error(not_found) for one that is not connected.
  void ask(const NodeId& node, Engine::Answer done);

 private:
  struct Question;
  void answer(const std::string& request, nlohmann::json with);

  boost::asio::io_context& context_;
  NodeConnections& nodes_;
  std::map<std::string, std::shared_ptr<Question>> questions_;
};

}  // namespace dtrain::head

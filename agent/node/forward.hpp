#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <map>
#include <memory>
#include <string>

#include "launcher/wire/frames.hpp"
#include "launcher/wire/node.hpp"

// Connections to ports of this node's loopback that the head asks for (`dtrain forward`): the
// connection on one side, the bulk connection on the other. All on the executor's thread.
namespace dtrain::node {

class Forwards {
 public:
  explicit Forwards(boost::asio::any_io_executor executor);
  ~Forwards();

  // The bulk connection, newly open or gone; the forwards of the one before end.
  void use(wire::FrameStreamPtr bulk);
  // StartForward, and ExecInput, ExecCredit, ExecControl of a forward; others are passed over.
  void message(const wire::BulkMessage& message, std::string bytes);

 private:
  class Tunnel;
  boost::asio::any_io_executor executor_;
  wire::FrameStreamPtr bulk_;
  std::map<std::string, std::shared_ptr<Tunnel>> tunnels_;
};

}  // namespace dtrain::node

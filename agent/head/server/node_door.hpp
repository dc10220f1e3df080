#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>

#include "agent/head/server/config_file.hpp"
#include "agent/head/server/greeter.hpp"
#include "agent/head/server/head_port.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::head {

class Joins;

// The one TLS port of a cluster, and who is let in by it. All on the io_context's thread, but for
// what comes to the port, which is the Greeter's.
class NodeDoor {
 public:
  // `greeting` as of Greeter.
  NodeDoor(boost::asio::io_context& context, boost::asio::io_context& greeting, ConfigFile& config);

  // Opens the port and writes it to head.json. The one that the nodes know is kept: when it is
  // taken it is tried again until it is free, and problem() says so. Throws Error(exhausted) when
  // there is none yet and none is free.
  void listen();
  int port() const { return config_->port; }
  const std::string& problem() const { return problem_; }  // with the port; empty: none

  // A node of this cluster that is let in.
  using LetIn = std::function<void(const wire::CallerPtr&)>;
  // From now on nodes are let in, and whoever has a join credential asks `joins`.
  void serve(Joins& joins, LetIn let_in);

 private:
  void opened(int port);
  boost::asio::awaitable<void> keep_own_certificate();
  void take(Greeter::Greeted greeted);
  void send_away(const wire::CallerPtr& caller);

  boost::asio::io_context& context_;
  boost::asio::io_context& greeting_;
  ConfigFile& config_;
  HeadPort port_;  // of greeting_
  std::string problem_;
  Joins* joins_ = nullptr;
  LetIn let_in_;
  std::optional<Greeter> greeter_;
};

}  // namespace dtrain::head

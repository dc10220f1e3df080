#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "agent/head/server/config_file.hpp"
#include "agent/head/server/greetings.hpp"
#include "agent/head/server/head_port.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::head {

class Joins;

// The one TLS port of a cluster, and who is let in by it. All on the io_context's thread.
class NodeDoor {
 public:
  NodeDoor(boost::asio::io_context& context, ConfigFile& config);

  // Opens the port and writes it to head.json. The one that the nodes know is kept: when it is
  // taken it is tried again until it is free, and problem() says so. Throws Error(exhausted) when
  // there is none yet and none is free.
  void listen();
  int port() const { return config_->port; }
  const std::string& problem() const { return problem_; }  // with the port; empty: none

  // A node of this cluster that is let in; what it throws ends the connection.
  using LetIn = std::function<boost::asio::awaitable<void>(wire::CallerPtr)>;
  // From now on nodes are let in, and whoever has a join credential asks `joins`.
  void serve(Joins& joins, LetIn let_in);

 private:
  using Socket = boost::asio::ip::tcp::socket;
  boost::asio::awaitable<void> wait_for_port(int port);
  boost::asio::awaitable<void> keep_own_certificate();
  std::shared_ptr<boost::asio::ssl::context> own_identity();
  void greet(Socket socket);
  boost::asio::awaitable<void> welcome(Socket socket, std::uint64_t number);
  boost::asio::awaitable<void> send_away(wire::CallerPtr caller);
  void tell_drops();

  boost::asio::io_context& context_;
  ConfigFile& config_;
  HeadPort port_;
  std::string problem_;
  Joins* joins_ = nullptr;
  LetIn let_in_;
  std::shared_ptr<boost::asio::ssl::context> identity_;  // null before the first connection
  fs::file_time_type identity_written_;
  Greetings greetings_;
  std::uint64_t drops_told_ = 0;
  std::chrono::steady_clock::time_point drops_told_at_;
};

}  // namespace dtrain::head

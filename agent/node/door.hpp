#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <memory>

#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::node {

// A port of this node for the other nodes of its cluster: TLS by which both prove who they are. All
// on the executor's thread, which must be one.
class Door : public std::enable_shared_from_this<Door> {
 public:
  // Awaited for each that comes; what it throws ends that connection.
  using Serve = std::function<boost::asio::awaitable<void>(wire::AcceptedPeer)>;

  // Open until close(). Error(exhausted) when there is no port.
  static std::shared_ptr<Door> open(const boost::asio::any_io_executor& executor,
                                    const fs::path& identity, const ClusterId& cluster,
                                    Serve serve);
  int port() const { return acceptor_.local_endpoint().port(); }
  bool is_open() const { return acceptor_.is_open(); }
  // Nobody comes in any more; who is in stays.
  void close();

  Door(const boost::asio::any_io_executor& executor, const fs::path& identity, ClusterId cluster,
       Serve serve);

 private:
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> greet(std::shared_ptr<boost::asio::ip::tcp::socket> socket);

  boost::asio::any_io_executor executor_;
  ClusterId cluster_;
  std::shared_ptr<boost::asio::ssl::context> tls_;
  Serve serve_;
  boost::asio::ip::tcp::acceptor acceptor_;
};

}  // namespace dtrain::node

#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dtrain::head {

// The head's one TCP port, on all addresses of this machine, IPv4 and IPv6, whichever of them it
// has. On the thread of its context.
class HeadPort {
 public:
  enum class Reach { everybody, this_machine };
  HeadPort(boost::asio::io_context& context, Reach reach);

  // Opens the first of `ports` that is free, and returns it; 0: none is.
  int open(const std::vector<int>& ports);
  // Opens it as soon as `port` is free: tried again each half second.
  boost::asio::awaitable<void> open_when_free(int port);
  // From now on, and from its opening on, each connection goes to `take`. `full` hears of those
  // that could not be accepted, for want of descriptors, say; they are tried again.
  void serve(std::function<void(boost::asio::ip::tcp::socket)> take, std::function<void()> full);

 private:
  using Acceptor = boost::asio::ip::tcp::acceptor;
  bool try_port(int port);
  void accept();
  boost::asio::awaitable<void> accept_from(Acceptor& acceptor);

  boost::asio::io_context& context_;
  Reach reach_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;  // of one port, one a family
  std::function<void(boost::asio::ip::tcp::socket)> take_;
  std::function<void()> full_;
};

}  // namespace dtrain::head

#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "launcher/core/error.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/requests.hpp"

// What frames.cpp and requests.cpp share of a TLS connection; for them only.
namespace dtrain::wire {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;
using TcpSocket = asio::ip::tcp::socket;
using TlsLayer = asio::ssl::stream<TcpSocket>;
using TlsSocket = beast::websocket::stream<TlsLayer>;  // which may stay plain HTTP

// Closes a socket when the time is up, unless it is let go before.
class SocketDeadline {
 public:
  SocketDeadline(TcpSocket& socket, std::chrono::steady_clock::time_point until);
  SocketDeadline(TcpSocket& socket, std::chrono::milliseconds limit)
      : SocketDeadline(socket, std::chrono::steady_clock::now() + limit) {}
  ~SocketDeadline();
  SocketDeadline(const SocketDeadline&) = delete;
  SocketDeadline& operator=(const SocketDeadline&) = delete;

  bool fired() const { return state_->fired; }

 private:
  struct State {
    TcpSocket* socket;
    bool fired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

// What is sent may stay unread for so long; 0: while the other machine answers.
void limit_unread(TcpSocket& socket, unsigned timeout_ms);
// No delay, and half-open connections close within about 20 s.
void tune(TcpSocket& socket);

Error connection_error(const SocketDeadline& deadline, const error_code& failed,
                       const std::string& where);

// The first half of a call: connects, proves who we are, and checks that the other end is
// `expected` of the cluster. Error as dial_tls.
asio::awaitable<void> connect_tls(TlsLayer& socket, const SocketDeadline& limit,
                                  std::string address, std::uint16_t port, PeerName::Role expected,
                                  ClusterId cluster);
std::string host_at(const std::string& address, std::uint16_t port);  // for messages

// Sends the answer and closes, on the socket's thread; whatever goes wrong ends it.
asio::awaitable<void> give_answer(std::shared_ptr<TlsSocket> socket, HttpAnswer answer);

}  // namespace dtrain::wire

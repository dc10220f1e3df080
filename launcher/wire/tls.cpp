#include <netinet/tcp.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "launcher/wire/tls_impl.hpp"

namespace dtrain::wire {

SocketDeadline::SocketDeadline(TcpSocket& socket, std::chrono::steady_clock::time_point until)
    : timer_(socket.get_executor(), until), state_(std::make_shared<State>(State{&socket})) {
  timer_.async_wait([state = state_](error_code stopped) {
    if (stopped || state->socket == nullptr) return;
    state->fired = true;
    error_code ignored;
    state->socket->close(ignored);
  });
}

SocketDeadline::~SocketDeadline() {
  state_->socket = nullptr;
  timer_.cancel();
}

void limit_unread(TcpSocket& socket, unsigned timeout_ms) {
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
               sizeof timeout_ms);
}

void tune(TcpSocket& socket) {
  error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int idle = 10;
  const int interval = 5;
  const int count = 2;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  limit_unread(socket, 20000);
}

Error connection_error(const SocketDeadline& deadline, const error_code& failed,
                       const std::string& where) {
  if (deadline.fired()) return Error(ErrorCode::timeout, where + " does not answer in time");
  return Error(ErrorCode::unreachable, "cannot connect to " + where + ": " + failed.message());
}

std::string host_at(const std::string& address, std::uint16_t port) {
  return address + " port " + std::to_string(port);
}

asio::awaitable<void> connect_tls(TlsLayer& socket, const SocketDeadline& limit,
                                  std::string address, std::uint16_t port, PeerName::Role expected,
                                  ClusterId cluster) {
  const std::string where = host_at(address, port);
  error_code failed;
  const asio::ip::address numeric = asio::ip::make_address(address, failed);
  if (failed) throw Error(ErrorCode::invalid, "not a numeric address: " + address);
  const asio::ip::tcp::endpoint endpoint(numeric, port);
  co_await socket.next_layer().async_connect(endpoint,
                                             asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  tune(socket.next_layer());
  co_await socket.async_handshake(asio::ssl::stream_base::client,
                                  asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  const PeerName name = peer_name(socket.native_handle());
  if (name.cluster != cluster || name.role != expected) {
    throw Error(ErrorCode::denied, where + " is " + name.uri() + ", which is not what was dialled");
  }
}

}  // namespace dtrain::wire

#include "launcher/wire/frames.hpp"

#include <netinet/tcp.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <deque>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain::wire {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr int kMaxUpgradeBytes = 16384;

template <typename Layer>
class Stream final : public FrameStream, public std::enable_shared_from_this<Stream<Layer>> {
 public:
  explicit Stream(websocket::stream<Layer> socket)
      : socket_(std::move(socket)),
        wake_(socket_.get_executor(), asio::steady_timer::time_point::max()),
        drained_(socket_.get_executor(), asio::steady_timer::time_point::max()) {}

  void start() {
    socket_.auto_fragment(false);
    socket_.read_message_max(kFrameLimit);
    socket_.write_buffer_bytes(65536);
    auto self = this->shared_from_this();
    asio::co_spawn(
        socket_.get_executor(), [self] { return self->write_loop(); }, asio::detached);
  }

  websocket::stream<Layer>& socket() { return socket_; }

  asio::awaitable<Frame> read() override {
    const auto self = this->shared_from_this();
    beast::flat_buffer buffer;
    error_code failed;
    co_await socket_.async_read(buffer, asio::redirect_error(asio::use_awaitable, failed));
    if (failed) {
      finish();
      throw Error(ErrorCode::unreachable, "the connection ended: " + failed.message());
    }
    Frame frame;
    frame.text = socket_.got_text();
    frame.bytes.assign(static_cast<const char*>(buffer.data().data()), buffer.data().size());
    co_return frame;
  }

  void send(Frame frame) override {
    if (over_ || closing_) return;
    queued_ += frame.bytes.size();
    queue_.push_back(std::move(frame));
    wake_.cancel();
  }

  asio::awaitable<void> queue_below(std::size_t bytes) override {
    const auto self = this->shared_from_this();
    while (!over_ && queued_ >= bytes) {
      error_code ignored;
      co_await drained_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  void close() override {
    closing_ = true;
    wake_.cancel();
  }

  void abort() override {
    finish();
    error_code ignored;
    beast::get_lowest_layer(socket_).close(ignored);
  }

  bool is_open() const override { return !over_ && !closing_; }

  std::string local_address() const override {
    if constexpr (std::is_same_v<Layer, asio::local::stream_protocol::socket>) {
      return {};
    } else {
      error_code failed;
      const auto endpoint = beast::get_lowest_layer(socket_).local_endpoint(failed);
      return failed ? std::string() : endpoint.address().to_string();
    }
  }

  bool peer_is_here() const override {
    if constexpr (std::is_same_v<Layer, asio::local::stream_protocol::socket>) {
      return true;
    } else {
      const auto& lowest = beast::get_lowest_layer(socket_);
      error_code failed;
      const auto peer = lowest.remote_endpoint(failed).address();
      if (failed) return false;
      return peer.is_loopback() || (peer == lowest.local_endpoint(failed).address() && !failed);
    }
  }

 private:
  void finish() {
    over_ = true;
    wake_.cancel();
    drained_.cancel();
  }

  asio::awaitable<void> write_loop() {
    const auto self = this->shared_from_this();
    error_code failed;
    while (!over_) {
      if (queue_.empty()) {
        if (closing_) break;
        error_code ignored;
        co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        continue;
      }
      const Frame& frame = queue_.front();
      socket_.text(frame.text);
      co_await socket_.async_write(asio::buffer(frame.bytes),
                                   asio::redirect_error(asio::use_awaitable, failed));
      if (failed) break;
      queued_ -= frame.bytes.size();
      queue_.pop_front();
      drained_.cancel();
    }
    if (closing_ && !over_ && !failed) {
      co_await socket_.async_close(websocket::close_code::normal,
                                   asio::redirect_error(asio::use_awaitable, failed));
    }
    abort();
  }

  websocket::stream<Layer> socket_;
  asio::steady_timer wake_;     // something to write, or the end
  asio::steady_timer drained_;  // something was written, or the end
  std::deque<Frame> queue_;
  std::size_t queued_ = 0;
  bool closing_ = false;
  bool over_ = false;
};

using TlsLayer = asio::ssl::stream<tcp::socket>;
using UnixSocket = asio::local::stream_protocol::socket;

// Closes a socket when the time is up, unless it is let go before.
class Deadline {
 public:
  Deadline(tcp::socket& socket, std::chrono::milliseconds limit)
      : timer_(socket.get_executor(), limit), state_(std::make_shared<State>(State{&socket})) {
    timer_.async_wait([state = state_](error_code stopped) {
      if (stopped || state->socket == nullptr) return;
      state->fired = true;
      error_code ignored;
      state->socket->close(ignored);
    });
  }
  ~Deadline() {
    state_->socket = nullptr;
    timer_.cancel();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  bool fired() const { return state_->fired; }

 private:
  struct State {
    tcp::socket* socket;
    bool fired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

void tune(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  // Half-open connections close within about 20 s.
  const int idle = 10;
  const int interval = 5;
  const int count = 2;
  const unsigned timeout_ms = 20000;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
               sizeof timeout_ms);
}

Error connection_error(const Deadline& deadline, const error_code& failed,
                       const std::string& where) {
  if (deadline.fired()) return Error(ErrorCode::timeout, where + " does not answer in time");
  return Error(ErrorCode::unreachable, "cannot connect to " + where + ": " + failed.message());
}

}  // namespace

asio::awaitable<FrameStreamPtr> dial_tls(std::string address, std::uint16_t port,
                                         std::shared_ptr<asio::ssl::context> context,
                                         PeerName::Role expected_role, ClusterId cluster,
                                         std::string path, std::chrono::milliseconds deadline) {
  const std::string where = address + " port " + std::to_string(port);
  error_code failed;
  const asio::ip::address numeric = asio::ip::make_address(address, failed);
  if (failed) throw Error(ErrorCode::invalid, "not a numeric address: " + address);
  websocket::stream<TlsLayer> socket(co_await asio::this_coro::executor, *context);
  tcp::socket& lowest = beast::get_lowest_layer(socket);
  const Deadline limit(lowest, deadline);
  const tcp::endpoint endpoint(numeric, port);
  co_await lowest.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  tune(lowest);
  co_await socket.next_layer().async_handshake(asio::ssl::stream_base::client,
                                               asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  const PeerName name = peer_name(socket.next_layer().native_handle());
  if (name.cluster != cluster || name.role != expected_role) {
    throw Error(ErrorCode::denied, where + " is " + name.uri() + ", which is not what was dialled");
  }
  co_await socket.async_handshake("dtrain", path,
                                  asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  auto stream = std::make_shared<Stream<TlsLayer>>(std::move(socket));
  stream->start();
  co_return stream;
}

namespace {

using TlsSocket = websocket::stream<TlsLayer>;
using Upgrade = http::request<http::string_body>;

// A connection on its way to another thread: its descriptor and its TLS session.
struct Moving {
  Moving(int socket, SSL* session) : fd(socket), ssl(session) {}
  ~Moving() {
    if (ssl != nullptr) ::SSL_free(ssl);
  }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

  UniqueFd fd;
  SSL* ssl;
};

asio::awaitable<FrameStreamPtr> upgrade(std::shared_ptr<TlsSocket> socket,
                                        std::shared_ptr<Upgrade> request) {
  error_code failed;
  co_await socket->async_accept(*request, asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw Error(ErrorCode::unreachable, "the connection ended: " + failed.message());
  auto stream = std::make_shared<Stream<TlsLayer>>(std::move(*socket));
  stream->start();
  co_return stream;
}

class TlsCaller final : public Caller {
 public:
  TlsCaller(std::shared_ptr<TlsSocket> socket, PeerName name, Upgrade request)
      : socket_(std::move(socket)),
        name_(std::move(name)),
        path_(request.target()),
        request_(std::make_shared<Upgrade>(std::move(request))) {}

  const PeerName& name() const override { return name_; }
  const std::string& path() const override { return path_; }

  asio::awaitable<FrameStreamPtr> accept() override {
    auto socket = std::move(socket_);
    FrameStreamPtr stream = co_await upgrade(std::move(socket), request_);
    co_return stream;
  }

  void accept_on(asio::io_context& there, std::function<void(FrameStreamPtr)> then) override {
    // The peer is silent until it has our answer, so nothing is on its way through the layers
    // that are taken off here; the session goes on over new ones.
    SSL* const ssl = socket_->next_layer().native_handle();
    tcp::socket& lowest = beast::get_lowest_layer(*socket_);
    const tcp protocol = lowest.local_endpoint().protocol();
    ::SSL_up_ref(ssl);
    const auto moving = std::make_shared<Moving>(lowest.release(), ssl);
    socket_.reset();
    asio::post(there, [&there, moving, protocol, request = request_, then = std::move(then)] {
      tcp::socket lower(there);
      error_code failed;
      lower.assign(protocol, moving->fd.get(), failed);
      if (failed) return;
      (void)moving->fd.release();
      SSL* const session = std::exchange(moving->ssl, nullptr);
      auto socket = std::make_shared<TlsSocket>(TlsLayer(std::move(lower), session));
      asio::co_spawn(there, upgrade(std::move(socket), request),
                     [then](const std::exception_ptr& broken, FrameStreamPtr stream) {
                       if (!broken) then(std::move(stream));
                     });
    });
  }

 private:
  std::shared_ptr<TlsSocket> socket_;
  PeerName name_;
  std::string path_;
  std::shared_ptr<Upgrade> request_;
};

}  // namespace

asio::awaitable<CallerPtr> greet_tls(tcp::socket accepted,
                                     std::shared_ptr<asio::ssl::context> context,
                                     std::chrono::milliseconds deadline) {
  const auto socket = std::make_shared<TlsSocket>(std::move(accepted), *context);
  tcp::socket& lowest = beast::get_lowest_layer(*socket);
  error_code failed;
  const auto remote = lowest.remote_endpoint(failed);
  const std::string where = failed ? "a peer" : remote.address().to_string();
  const Deadline limit(lowest, deadline);
  tune(lowest);
  co_await socket->next_layer().async_handshake(asio::ssl::stream_base::server,
                                                asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  PeerName name = peer_name(socket->next_layer().native_handle());
  beast::flat_buffer buffer;
  http::request_parser<http::string_body> parser;
  parser.header_limit(kMaxUpgradeBytes);
  parser.body_limit(kMaxUpgradeBytes);
  co_await http::async_read(socket->next_layer(), buffer, parser,
                            asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  if (buffer.size() > 0) {
    throw Error(ErrorCode::invalid, where + " speaks before it is answered");
  }
  co_return std::make_shared<TlsCaller>(socket, std::move(name), parser.release());
}

asio::awaitable<AcceptedPeer> accept_tls(tcp::socket accepted,
                                         std::shared_ptr<asio::ssl::context> context,
                                         std::chrono::milliseconds deadline) {
  const CallerPtr caller = co_await greet_tls(std::move(accepted), context, deadline);
  AcceptedPeer peer;
  peer.name = caller->name();
  peer.path = caller->path();
  peer.stream = co_await caller->accept();
  co_return peer;
}

asio::awaitable<FrameStreamPtr> accept_unix(UnixSocket accepted, std::string request) {
  websocket::stream<UnixSocket> socket(std::move(accepted));
  error_code failed;
  co_await socket.async_accept(asio::buffer(request),
                               asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw Error(ErrorCode::invalid, "no WebSocket request: " + failed.message());
  auto stream = std::make_shared<Stream<UnixSocket>>(std::move(socket));
  stream->start();
  co_return stream;
}

}  // namespace dtrain::wire

#include "launcher/wire/frames.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/tls_impl.hpp"

namespace dtrain::wire {
namespace {

namespace http = beast::http;
namespace websocket = beast::websocket;
using tcp = asio::ip::tcp;

constexpr int kMaxHeadBytes = 16384;

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

using UnixSocket = asio::local::stream_protocol::socket;

}  // namespace

asio::awaitable<FrameStreamPtr> dial_tls(std::string address, std::uint16_t port,
                                         std::shared_ptr<asio::ssl::context> context,
                                         PeerName::Role expected_role, ClusterId cluster,
                                         std::string path, std::chrono::milliseconds deadline,
                                         bool patient) {
  const std::string where = host_at(address, port);
  TlsSocket socket(co_await asio::this_coro::executor, *context);
  const SocketDeadline limit(beast::get_lowest_layer(socket), deadline);
  co_await connect_tls(socket.next_layer(), limit, address, port, expected_role, cluster);
  error_code failed;
  co_await socket.async_handshake("dtrain", path,
                                  asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw connection_error(limit, failed, where);
  if (patient) limit_unread(beast::get_lowest_layer(socket), 0);
  auto stream = std::make_shared<Stream<TlsLayer>>(std::move(socket));
  stream->start();
  co_return stream;
}

namespace {

using Head = http::request_parser<http::string_body>;

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

// Takes a connection to another thread. The peer must be silent until it has our answer, so that
// nothing is on its way through the layers that are taken off here; the session goes on over new
// ones. `then` is called there.
void move_to(asio::any_io_executor there, std::shared_ptr<TlsSocket> socket,
             std::function<void(std::shared_ptr<TlsSocket>)> then) {
  SSL* const ssl = socket->next_layer().native_handle();
  tcp::socket& lowest = beast::get_lowest_layer(*socket);
  const tcp protocol = lowest.local_endpoint().protocol();
  ::SSL_up_ref(ssl);
  const auto moving = std::make_shared<Moving>(lowest.release(), ssl);
  socket.reset();
  asio::post(there, [there, moving, protocol, then = std::move(then)] {
    tcp::socket lower(there);
    error_code failed;
    lower.assign(protocol, moving->fd.get(), failed);
    if (failed) return;
    (void)moving->fd.release();
    SSL* const session = std::exchange(moving->ssl, nullptr);
    then(std::make_shared<TlsSocket>(TlsLayer(std::move(lower), session)));
  });
}

asio::awaitable<FrameStreamPtr> upgrade(std::shared_ptr<TlsSocket> socket,
                                        std::shared_ptr<Head> request) {
  error_code failed;
  co_await socket->async_accept(request->get(), asio::redirect_error(asio::use_awaitable, failed));
  if (failed) throw Error(ErrorCode::unreachable, "the connection ended: " + failed.message());
  auto stream = std::make_shared<Stream<TlsLayer>>(std::move(*socket));
  stream->start();
  co_return stream;
}

class TlsCaller final : public Caller {
 public:
  TlsCaller(std::shared_ptr<TlsSocket> socket, PeerName name, std::string where,
            std::chrono::steady_clock::time_point until)
      : socket_(std::move(socket)),
        name_(std::move(name)),
        fingerprint_(peer_fingerprint(socket_->next_layer().native_handle())),
        certified_(peer_certified(socket_->next_layer().native_handle())),
        where_(std::move(where)),
        until_(until) {}

  asio::awaitable<void> read_head() {
    const SocketDeadline limit(beast::get_lowest_layer(*socket_), until_);
    request_->header_limit(kMaxHeadBytes);
    request_->body_limit(std::uint64_t{0} - 1);  // whoever reads it says what may come
    error_code failed;
    co_await http::async_read_header(socket_->next_layer(), buffer_, *request_,
                                     asio::redirect_error(asio::use_awaitable, failed));
    if (failed) throw connection_error(limit, failed, where_);
    method_ = std::string(request_->get().method_string());
    path_ = std::string(request_->get().target());
  }

  const PeerName& name() const override { return name_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  WallTime certified() const override { return certified_; }
  const std::string& method() const override { return method_; }
  const std::string& path() const override { return path_; }
  const std::string& where() const override { return where_; }

  asio::awaitable<std::string> body(std::size_t limit) override {
    const auto length = request_->content_length();
    if (!length || *length > limit) {
      throw Error(ErrorCode::exhausted, length ? "a request of " + std::to_string(*length) +
                                                     " bytes, and " + std::to_string(limit) +
                                                     " may come"
                                               : "a request that does not say how long it is");
    }
    const SocketDeadline until(beast::get_lowest_layer(*socket_), until_);
    error_code failed;
    co_await http::async_read(socket_->next_layer(), buffer_, *request_,
                              asio::redirect_error(asio::use_awaitable, failed));
    if (failed) throw connection_error(until, failed, where_);
    co_return std::move(request_->get().body());
  }

  asio::awaitable<FrameStreamPtr> accept(bool patient) override {
    check_silent();
    if (patient) limit_unread(beast::get_lowest_layer(*socket_), 0);
    auto socket = std::move(socket_);
    FrameStreamPtr stream = co_await upgrade(std::move(socket), request_);
    co_return stream;
  }

  void accept_on(asio::any_io_executor there, std::function<void(FrameStreamPtr)> then,
                 bool patient) override {
    check_silent();
    move_to(there, std::move(socket_),
            [there, request = request_, then = std::move(then),
             patient](std::shared_ptr<TlsSocket> moved) {
              if (patient) limit_unread(beast::get_lowest_layer(*moved), 0);
              asio::co_spawn(there, upgrade(std::move(moved), request),
                             [then](const std::exception_ptr& broken, FrameStreamPtr stream) {
                               if (!broken) then(std::move(stream));
                             });
            });
  }

  void answer_on(asio::any_io_executor there, HttpAnswer answer,
                 std::function<void()> done) override {
    // Called whatever becomes of it, when the last of what is to be done is let go of.
    const std::shared_ptr<void> end(nullptr, [done = std::move(done)](void*) { done(); });
    move_to(there, std::move(socket_),
            [there, answer = std::move(answer), end](std::shared_ptr<TlsSocket> moved) {
              asio::co_spawn(there, give_answer(std::move(moved), answer),
                             [end](const std::exception_ptr&) {});
            });
  }

 private:
  void check_silent() const {
    if (buffer_.size() > 0 || !request_->is_done()) {
      throw Error(ErrorCode::invalid, where_ + " speaks before it is answered");
    }
  }

  std::shared_ptr<TlsSocket> socket_;
  PeerName name_;
  std::string fingerprint_;
  WallTime certified_;
  std::string where_;
  std::chrono::steady_clock::time_point until_;
  beast::flat_buffer buffer_;
  std::shared_ptr<Head> request_ = std::make_shared<Head>();
  std::string method_;
  std::string path_;
};

}  // namespace

asio::awaitable<CallerPtr> greet_tls(tcp::socket accepted,
                                     std::shared_ptr<asio::ssl::context> context,
                                     std::chrono::milliseconds deadline, Callers callers) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  const auto socket = std::make_shared<TlsSocket>(std::move(accepted), *context);
  tcp::socket& lowest = beast::get_lowest_layer(*socket);
  error_code failed;
  const auto remote = lowest.remote_endpoint(failed);
  const std::string where = failed ? "a peer" : remote.address().to_string();
  PeerName name;
  {
    const SocketDeadline limit(lowest, until);
    tune(lowest);
    co_await socket->next_layer().async_handshake(
        asio::ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, failed));
    if (failed) throw connection_error(limit, failed, where);
    name = peer_name(socket->next_layer().native_handle());
  }
  const bool may_join = callers == Callers::nodes_and_joining && name.role == PeerName::Role::join;
  if (name.role != PeerName::Role::node && !may_join) {
    throw Error(ErrorCode::denied, name.uri() + " has no business here");
  }
  const auto caller = std::make_shared<TlsCaller>(socket, std::move(name), where, until);
  co_await caller->read_head();
  co_return caller;
}

asio::awaitable<AcceptedPeer> accept_tls(tcp::socket accepted,
                                         std::shared_ptr<asio::ssl::context> context,
                                         std::chrono::milliseconds deadline, bool patient) {
  const CallerPtr caller =
      co_await greet_tls(std::move(accepted), context, deadline, Callers::nodes);
  AcceptedPeer peer;
  peer.name = caller->name();
  peer.path = caller->path();
  peer.stream = co_await caller->accept(patient);
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

#include "tests/support/fake_head.hpp"

#include <sys/socket.h>

#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>

namespace dtrain::testing {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using Socket = asio::local::stream_protocol::socket;

class WebSocketConnection final : public FakeHead::Connection {
 public:
  WebSocketConnection(websocket::stream<Socket&, false>& stream, std::string target)
      : stream_(stream), target_(std::move(target)) {}

  const std::string& target() const override { return target_; }
  void text(const std::string& frame) override {
    stream_.text(true);
    beast::error_code ignored;
    stream_.write(asio::buffer(frame), ignored);
  }
  void binary(std::string_view bytes) override {
    stream_.text(false);
    beast::error_code ignored;
    stream_.write(asio::buffer(bytes), ignored);
  }
  std::optional<std::string> read() override {
    beast::flat_buffer buffer;
    beast::error_code error;
    stream_.read(buffer, error);
    if (error) return std::nullopt;
    return beast::buffers_to_string(buffer.data());
  }
  void close() override {
    beast::error_code ignored;
    stream_.close(websocket::close_code::normal, ignored);
  }

 private:
  websocket::stream<Socket&, false>& stream_;
  std::string target_;
};

}  // namespace

struct FakeHead::Impl {
  asio::io_context io;
  asio::local::stream_protocol::acceptor acceptor{io};
  OnRequest on_request;
  OnSocket on_socket;
  std::function<bool(const std::string&)> hang_up;
  std::function<bool(const std::string&)> refuse;
  std::mutex mutex;
  std::list<Socket> sockets;
  std::vector<std::thread> threads;
  bool ending = false;
  std::thread accepting;

  void accept() {
    while (true) {
      Socket socket(io);
      beast::error_code error;
      acceptor.accept(socket, error);
      const std::lock_guard lock(mutex);
      if (ending) return;
      if (error) continue;
      sockets.push_back(std::move(socket));
      threads.emplace_back([this, &mine = sockets.back()] { serve(mine); });
    }
  }

  void serve(Socket& socket) {
    beast::flat_buffer buffer;
    http::request<http::string_body> request;
    beast::error_code error;
    http::read(socket, buffer, request, error);
    const bool upgrade = !error && websocket::is_upgrade(request);
    if (upgrade && hang_up && hang_up(std::string(request.target()))) {
      // Gone in the middle of the handshake.
    } else if (upgrade && refuse && refuse(std::string(request.target()))) {
      const std::string body = R"({"error": {"code": "invalid", "message": "no such thing"}})";
      const std::string text =
          "HTTP/1.1 400 No\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
          "\r\n\r\n" + body;
      asio::write(socket, asio::buffer(text), error);
    } else if (upgrade) {
      websocket::stream<Socket&, false> stream(socket);
      stream.accept(request, error);
      if (!error) {
        WebSocketConnection connection(stream, std::string(request.target()));
        on_socket(connection);
      }
    } else if (!error) {
      Request asked{std::string(request.method_string()), std::string(request.target()),
                    request.body(), std::string(request[http::field::range])};
      const Response response = on_request(asked);
      std::string text =
          "HTTP/1.1 " + std::to_string(response.status) +
          " Said\r\nConnection: close\r\nContent-Length: " + std::to_string(response.body.size()) +
          "\r\n\r\n";
      text += response.body.substr(0, response.cut.value_or(response.body.size()));
      asio::write(socket, asio::buffer(text), error);
      if (response.then) response.then();
    }
    // Not close(): the destructor may be shutting it down this moment.
    ::shutdown(socket.native_handle(), SHUT_RDWR);
  }
};

FakeHead::FakeHead(const fs::path& socket, OnRequest on_request, OnSocket on_socket)
    : impl_(std::make_unique<Impl>()) {
  impl_->on_request = std::move(on_request);
  impl_->on_socket = std::move(on_socket);
  fs::remove(socket);
  const asio::local::stream_protocol::endpoint endpoint(socket.string());
  impl_->acceptor.open(endpoint.protocol());
  impl_->acceptor.bind(endpoint);
  impl_->acceptor.listen();
  impl_->accepting = std::thread([my = impl_.get()] { my->accept(); });
}

void FakeHead::refuse_at(std::function<bool(const std::string&)> decide) {
  impl_->refuse = std::move(decide);
}

void FakeHead::hang_up_at(std::function<bool(const std::string&)> decide) {
  impl_->hang_up = std::move(decide);
}

FakeHead::~FakeHead() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
    ::shutdown(impl_->acceptor.native_handle(), SHUT_RDWR);
    for (Socket& socket : impl_->sockets) ::shutdown(socket.native_handle(), SHUT_RDWR);
  }
  impl_->accepting.join();
  for (std::thread& thread : impl_->threads) thread.join();
}

}  // namespace dtrain::testing

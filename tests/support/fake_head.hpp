#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/files.hpp"

namespace dtrain::testing {

// An HTTP and WebSocket server on a unix socket that answers what a test tells it to. Each
// connection has a thread; the handlers run there, several at once.
class FakeHead {
 public:
  struct Request {
    std::string method;
    std::string target;
    std::string body;
    std::string range;  // the Range header; empty: none
  };
  struct Response {
    int status = 200;
    std::string body = "{}";
    // Hang up after so many bytes of the body.
    std::optional<std::size_t> cut = std::nullopt;
    std::function<void()> then = nullptr;  // once it is sent
  };
  class Connection {
   public:
    virtual ~Connection() = default;
    virtual const std::string& target() const = 0;
    virtual void text(const std::string& frame) = 0;
    virtual void binary(std::string_view bytes) = 0;
    // The next frame; absent when the client has gone.
    virtual std::optional<std::string> read() = 0;
    virtual void close() = 0;  // in good order; without it the handler's end is a broken connection
  };
  using OnRequest = std::function<Response(const Request&)>;
  using OnSocket = std::function<void(Connection&)>;

  FakeHead(const fs::path& socket, OnRequest on_request, OnSocket on_socket);
  // Hangs up on everybody and waits for the handlers.
  ~FakeHead();
  // Asked at each WebSocket request, on any thread; true: the connection breaks before an answer.
  // Set before anybody comes.
  void hang_up_at(std::function<bool(const std::string& target)> decide);
  // The same; true: the request is refused as invalid, as a head does that does not know it.
  void refuse_at(std::function<bool(const std::string& target)> decide);
  FakeHead(const FakeHead&) = delete;
  FakeHead& operator=(const FakeHead&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrain::testing

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/provider/http.hpp"

using namespace dtrain;
using namespace std::chrono_literals;

namespace {

// A proxy that this machine's user has is not for loopback.
[[maybe_unused]] const int kDirect = ::setenv("no_proxy", "*", 1);

// Answers each request on loopback with the same bytes, then closes or holds the connection.
class ByteServer {
 public:
  explicit ByteServer(std::string answer, bool holds = false)
      : answer_(std::move(answer)),
        holds_(holds),
        socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    REQUIRE(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    REQUIRE(::listen(socket_.get(), 16) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  ~ByteServer() {
    thread_.request_stop();
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  ByteServer(const ByteServer&) = delete;
  ByteServer& operator=(const ByteServer&) = delete;

  std::string url(const std::string& host = "127.0.0.1") const {
    return "http://" + host + ":" + std::to_string(port_);
  }
  int connections() const { return connections_; }
  std::string request() const { return request_; }  // the last one's head and body

 private:
  void serve(const std::stop_token& stop) {
    std::vector<UniqueFd> held;
    while (!stop.stop_requested()) {
      UniqueFd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) return;
      ++connections_;
      while (read_request(peer.get(), stop)) {
        for (std::size_t sent = 0; sent < answer_.size();) {
          const ssize_t n =
              ::send(peer.get(), answer_.data() + sent, answer_.size() - sent, MSG_NOSIGNAL);
          if (n <= 0) break;
          sent += static_cast<std::size_t>(n);
        }
        if (!holds_) break;
      }
      held.push_back(std::move(peer));
      if (!holds_) held.clear();
    }
  }
  bool read_request(int peer, const std::stop_token& stop) {
    std::string text;
    for (char part[4096]; !stop.stop_requested();) {
      const std::size_t end = text.find("\r\n\r\n");
      const std::size_t length = text.find("Content-Length: ");
      const std::size_t body =
          length == std::string::npos ? 0 : std::stoul(text.substr(length + 16));
      if (end != std::string::npos && text.size() >= end + 4 + body) break;
      pollfd ready{peer, POLLIN, 0};
      if (::poll(&ready, 1, 20) == 0) continue;
      const ssize_t n = ::recv(peer, part, sizeof part, 0);
      if (n <= 0) return false;
      text.append(part, static_cast<std::size_t>(n));
    }
    request_ = text;
    return !stop.stop_requested();
  }

  std::string answer_;
  bool holds_;
  UniqueFd socket_;
  int port_ = 0;
  std::atomic<int> connections_ = 0;
  std::string request_;
  std::jthread thread_;
};

std::string whole(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nX-One:  a b \r\n\r\n" + body;
}

Error error_of(Http& http, const HttpRequest& request, const std::stop_token& stop = {}) {
  try {
    http.send(request, stop);
  } catch (const Error& error) {
    return error;
  }
  FAIL("there was an answer");
  return {ErrorCode::internal, ""};
}

HttpRequest to(const std::string& url) {
  HttpRequest request;
  request.url = url;
  return request;
}

}  // namespace

TEST_CASE("http: what is sent and what is answered") {
  ByteServer server(whole("hello"), true);
  const auto http = make_http();
  HttpRequest request = to(server.url() + "/a/b?c=d");
  HttpAnswer answer = http->send(request);
  CHECK(answer.status == 200);
  CHECK(answer.body == "hello");
  REQUIRE(answer.field("x-one") != nullptr);
  CHECK(*answer.field("x-one") == "a b");
  CHECK(answer.field("x-two") == nullptr);
  CHECK(server.request().starts_with("GET /a/b?c=d HTTP/1.1\r\n"));

  request.method = "POST";
  request.body = std::string("a=1&\0z", 6);
  request.fields = {{"Content-Type", "text/x"}, {"X-Empty", ""}};
  http->send(request);
  const std::string sent = server.request();
  CHECK(sent.starts_with("POST /a/b?c=d HTTP/1.1\r\n"));
  CHECK(sent.ends_with("\r\n\r\n" + request.body));
  CHECK(sent.find("Content-Type: text/x\r\n") != std::string::npos);
  CHECK(sent.find("x-www-form-urlencoded") == std::string::npos);
  CHECK(sent.find("X-Empty:\r\n") != std::string::npos);
  CHECK(sent.find("Expect") == std::string::npos);

  request = to(server.url());
  request.method = "PUT";
  http->send(request);
  CHECK(server.request().starts_with("PUT / HTTP/1.1\r\n"));
  CHECK(server.request().find("Content-Length: 0\r\n") != std::string::npos);
  CHECK(server.request().find("Content-Type") == std::string::npos);
  CHECK(server.connections() == 1);  // it is kept

  ByteServer other(whole("named"));
  CHECK(http->send(to(other.url("localhost"))).body == "named");
}

TEST_CASE("http: any status is an answer, and nothing is followed") {
  ByteServer server(
      "HTTP/1.1 100 Continue\r\nX-A: 1\r\n\r\nHTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n"
      "Content-Length: 0\r\n\r\n");
  const HttpAnswer answer = make_http()->send(to(server.url()));
  CHECK(answer.status == 302);
  CHECK(answer.field("x-a") == nullptr);
  CHECK(*answer.field("location") == "http://192.0.2.1/");
}

TEST_CASE("http: answers that are too large, broken off, or none") {
  const auto http = make_http();
  {
    ByteServer server(whole(std::string(100'000, 'x')));
    HttpRequest request = to(server.url());
    request.most = 99'999;
    CHECK(error_of(*http, request).code() == ErrorCode::exhausted);
    request.most = 100'000;
    CHECK(http->send(request).body.size() == 100'000);
  }
  {
    ByteServer server("HTTP/1.1 200 OK\r\nX: " + std::string(400'000, 'y') + "\r\n\r\n");
    const ErrorCode code = error_of(*http, to(server.url())).code();
    CHECK((code == ErrorCode::exhausted || code == ErrorCode::unreachable));  // libcurl's own bound
  }
  for (const char* broken :
       {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "", "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    ByteServer server(broken);
    CHECK(error_of(*http, to(server.url())).code() == ErrorCode::unreachable);
  }
}

TEST_CASE("http: waiting has an end") {
  const auto http = make_http();
  ByteServer server("", true);
  HttpRequest request = to(server.url() + "/secret?secret=1");
  request.timeout = 50ms;
  const Error late = error_of(*http, request);
  CHECK(late.code() == ErrorCode::timeout);
  CHECK(std::string(late.what()).find("secret") == std::string::npos);

  request.timeout = 10min;
  std::stop_source stop;
  std::jthread stopper([&] {
    while (server.connections() < 2) std::this_thread::yield();
    stop.request_stop();
  });
  const Error given_up = error_of(*http, request, stop.get_token());
  CHECK(given_up.code() == ErrorCode::failed);
  CHECK(error_of(*http, request, stop.get_token()).code() == ErrorCode::failed);  // at once
}

TEST_CASE("http: who cannot be reached") {
  const auto http = make_http();
  std::string url;
  {
    ByteServer server("");
    url = server.url();
  }
  CHECK(error_of(*http, to(url + "/x")).code() == ErrorCode::unreachable);
  CHECK(std::string(error_of(*http, to(url + "/x")).what())
            .starts_with(url + " cannot be reached: "));
  CHECK(error_of(*http, to("http://no-such-host.invalid/")).code() == ErrorCode::unreachable);
  CHECK(error_of(*http, to("file:///etc/passwd")).code() == ErrorCode::unreachable);
  CHECK(error_of(*http, to("nonsense nonsense")).code() == ErrorCode::unreachable);
  CHECK(origin_of("https://u:p@host:8443/path?q") == "https://host:8443");
  CHECK(origin_of("https://host?q@x") == "https://host");
}

TEST_CASE("http: from several threads") {
  ByteServer server(whole("x"));
  const auto http = make_http();
  std::atomic<int> good = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 20; ++j) good += http->send(to(server.url())).body == "x" ? 1 : 0;
      });
    }
  }
  CHECK(good == 80);
}

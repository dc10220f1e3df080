#include "launcher/wire/requests.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/wire/frames.hpp"
#include "tests/support/identities.hpp"

using namespace dtrain;
using namespace dtrain::wire;
using namespace std::chrono_literals;
using tcp = asio::ip::tcp;
using dtrain::testing::Cluster;
using dtrain::testing::kLab;

namespace {

constexpr std::size_t kMost = 100;  // bytes of a request

// A head's port for one caller: answers what it was asked, on a thread of its own.
struct OneAnswer {
  Cluster cluster;
  asio::io_context context{1};
  asio::io_context sending{1};
  tcp::acceptor acceptor{context, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  HttpAnswer answer;
  std::string asked;
  bool done = false;

  OneAnswer() {
    cluster.identity(PeerName::Role::head, "head");
    cluster.identity(PeerName::Role::join, "joined-1");
  }

  asio::awaitable<void> serve() {
    tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
    const CallerPtr caller = co_await greet_tls(
        std::move(socket), tls_context(cluster.folder("head"), PeerName::Role::head), 5s,
        Callers::nodes_and_joining);
    asked = caller->name().uri() + " " + caller->method() + " " + caller->path();
    if (caller->method() == "POST") {
      try {
        asked += " " + co_await caller->body(kMost);
      } catch (const Error& error) {
        answer.status = 413;
        answer.body = error.what();
      }
    }
    caller->answer_on(sending.get_executor(), answer, [this] { done = true; });
  }

  template <typename Client>
  void run(Client client) {
    const auto work = asio::make_work_guard(sending);
    std::thread thread([this] { sending.run(); });
    asio::co_spawn(context, serve(), asio::detached);
    asio::co_spawn(context, client, [this](const std::exception_ptr&) { sending.stop(); });
    context.run();
    thread.join();
  }

  // What came for a request that is sent as it stands, head and all.
  std::string raw(const std::string& request) {
    std::string heard;
    run([&]() -> asio::awaitable<void> {
      const auto tls = tls_context(cluster.folder("joined-1"), PeerName::Role::node);
      asio::ssl::stream<tcp::socket> socket(context, *tls);
      co_await socket.next_layer().async_connect(acceptor.local_endpoint(), asio::use_awaitable);
      co_await socket.async_handshake(asio::ssl::stream_base::client, asio::use_awaitable);
      co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
      boost::system::error_code ended;
      co_await asio::async_read(socket, asio::dynamic_buffer(heard),
                                asio::redirect_error(asio::use_awaitable, ended));
      // Told, not cut off.
      CHECK(ended == asio::error::eof);
      co_await socket.async_shutdown(asio::redirect_error(asio::use_awaitable, ended));
    });
    return heard;
  }
};

}  // namespace

TEST_CASE("requests: asked by POST and answered on another thread") {
  OneAnswer head;
  head.answer.type = "application/json";
  head.answer.body = "{}";
  HttpReply reply;
  head.run([&]() -> asio::awaitable<void> {
    reply = co_await post_tls("127.0.0.1", head.acceptor.local_endpoint().port(),
                              tls_context(head.cluster.folder("joined-1"), PeerName::Role::node),
                              PeerName::Role::head, kLab, "/v1/join/request", "{\"a\": 1}", 5s);
  });
  CHECK(head.asked == "dtrain://lab-abcdef/join/joined-1 POST /v1/join/request {\"a\": 1}");
  CHECK(reply.status == 200);
  CHECK(reply.body == "{}");
}

TEST_CASE("requests: a file goes behind its sum, whole") {
  OneAnswer head;
  const testing::TemporaryFolder folder;
  std::string content;
  for (int i = 0; content.size() < 300000; ++i) content += std::to_string(i) + '\0';
  write_file_atomic(folder / "file", content);
  head.answer.file = std::make_shared<const UniqueFd>(open_file(folder / "file", O_RDONLY));
  head.answer.size = content.size();
  head.answer.sha256 = "00ff";
  const std::string heard = head.raw("GET /v1/join/agent HTTP/1.1\r\nHost: head\r\n\r\n");
  const std::size_t split = heard.find("\r\n\r\n");
  REQUIRE(split != std::string::npos);
  CHECK(heard.starts_with("HTTP/1.1 200 OK\r\n"));
  // As join scripts look for them.
  CHECK(heard.find("\r\nETag: \"00ff\"\r\n") < split);
  CHECK(heard.find("\r\nContent-Length: " + std::to_string(content.size()) + "\r\n") < split);
  CHECK(heard.substr(split + 4) == content);
}

TEST_CASE("requests: of a body that is too long, or does not say how long, nothing is read") {
  for (const char* length :
       {"Content-Length: 1073741824", "Content-Length: 101", "Transfer-Encoding: chunked"}) {
    CAPTURE(length);
    OneAnswer head;
    const std::string heard = head.raw("POST /v1/join/request HTTP/1.1\r\nHost: head\r\n" +
                                       std::string(length) + "\r\n\r\n");
    CHECK(heard.starts_with("HTTP/1.1 413 "));
    CHECK(head.asked == "dtrain://lab-abcdef/join/joined-1 POST /v1/join/request");
  }
}

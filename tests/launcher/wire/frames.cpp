#include "launcher/wire/frames.hpp"

#include <doctest/doctest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "launcher/core/error.hpp"
#include "tests/support/identities.hpp"

using namespace dtrain;
using namespace dtrain::wire;
using namespace std::chrono_literals;
using tcp = asio::ip::tcp;

namespace {

using dtrain::testing::Cluster;

// One attempt of a node to reach a head on loopback; what each side saw.
struct Meeting {
  std::string accepted;  // the peer's name, or the server's error
  std::string dialled;   // "ok", or the client's error
  std::string echoed;
};

asio::awaitable<void> serve_one(tcp::acceptor& acceptor, fs::path identity, Meeting& seen) {
  tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
  try {
    AcceptedPeer peer =
        co_await accept_tls(std::move(socket), tls_context(identity, PeerName::Role::head), 5s);
    seen.accepted = peer.name.uri() + " " + peer.path;
    Frame frame = co_await peer.stream->read();
    peer.stream->send(std::move(frame));
    peer.stream->close();
  } catch (const Error& error) {
    seen.accepted = error.what();
  }
}

asio::awaitable<void> dial_one(std::uint16_t port, fs::path identity, ClusterId cluster,
                               std::string payload, Meeting& seen) {
  try {
    FrameStreamPtr stream =
        co_await dial_tls("127.0.0.1", port, tls_context(identity, PeerName::Role::node),
                          PeerName::Role::head, cluster, "/v1/node/control", 5s);
    seen.dialled = "ok";
    stream->send({false, payload});
    Frame frame = co_await stream->read();
    seen.echoed = frame.bytes;
    stream->close();
  } catch (const Error& error) {
    seen.dialled = error.what();
  }
}

Meeting meet(const fs::path& head, const fs::path& node, const std::string& payload = "hello") {
  asio::io_context context(1);
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  const std::uint16_t port = acceptor.local_endpoint().port();
  Meeting seen;
  asio::co_spawn(context, serve_one(acceptor, head, seen), asio::detached);
  asio::co_spawn(context, dial_one(port, node, dtrain::testing::kLab, payload, seen),
                 asio::detached);
  context.run();
  return seen;
}

}  // namespace

TEST_CASE("a node and its head find each other, and frames come whole") {
  Cluster cluster;
  const fs::path head = cluster.identity(PeerName::Role::head, "head");
  const fs::path node = cluster.identity(PeerName::Role::node, "node-0");
  const std::string large(3 << 20, 'x');
  for (const std::string& payload : {std::string("hello"), std::string(), large}) {
    const Meeting seen = meet(head, node, payload);
    CHECK(seen.dialled == "ok");
    CHECK(seen.accepted == "dtrain://lab-abcdef/node/node-0 /v1/node/control");
    CHECK(seen.echoed == payload);
  }
}

TEST_CASE("a certificate of another cluster is refused by both ends") {
  Cluster ours;
  Cluster theirs(ClusterId("other-abcdef"));
  const fs::path head = ours.identity(PeerName::Role::head, "head");
  const fs::path stranger = theirs.identity(PeerName::Role::node, "node-0");
  const Meeting seen = meet(head, stranger);
  CHECK(seen.dialled != "ok");
  CHECK(seen.accepted.find("dtrain://") == std::string::npos);

  const fs::path wrong_head = theirs.identity(PeerName::Role::head, "head");
  const fs::path node = ours.identity(PeerName::Role::node, "node-0");
  CHECK(meet(wrong_head, node).dialled != "ok");
}

TEST_CASE("a node's certificate does not make a head") {
  Cluster cluster;
  const fs::path impostor = cluster.identity(PeerName::Role::node, "node-7");
  const fs::path node = cluster.identity(PeerName::Role::node, "node-0");
  CHECK(meet(impostor, node).dialled != "ok");
}

TEST_CASE("an expired certificate is refused, a clock that is a day off is not") {
  Cluster cluster;
  const auto now = std::chrono::system_clock::now();
  const fs::path head = cluster.identity(PeerName::Role::head, "head");
  CHECK(meet(head, cluster.identity(PeerName::Role::node, "old", now - 31 * 24h)).dialled != "ok");
  CHECK(meet(head, cluster.identity(PeerName::Role::node, "ahead", now + 24h)).dialled == "ok");
  // The same for a machine whose clock is off from the head's.
  const fs::path node = cluster.identity(PeerName::Role::node, "node-0");
  for (const auto off : {-1h, 1h, 24h}) {
    CAPTURE(off.count());
    const fs::path head_there = cluster.identity(PeerName::Role::head, "head", now + off);
    CHECK(meet(head_there, node).dialled == "ok");
  }
  const std::string refused =
      meet(cluster.identity(PeerName::Role::head, "head", now + 49h), node).dialled;
  CHECK(refused.find("certificate verify failed") != std::string::npos);
}

TEST_CASE("a join credential opens no door of nodes, and nobody reads what it brings") {
  Cluster cluster;
  const fs::path joining = cluster.identity(PeerName::Role::join, "joined-1");
  const fs::path head = cluster.identity(PeerName::Role::head, "head");
  const fs::path node = cluster.identity(PeerName::Role::node, "node-0");
  for (const bool pair : {false, true}) {
    CAPTURE(pair);
    asio::io_context context(1);
    tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    std::string refusal;
    asio::co_spawn(
        context,
        [](tcp::acceptor& door, std::shared_ptr<asio::ssl::context> tls,
           std::string& said) -> asio::awaitable<void> {
          tcp::socket socket = co_await door.async_accept(asio::use_awaitable);
          try {
            (void)co_await accept_tls(std::move(socket), tls, 5s);
          } catch (const Error& error) {
            said = error.what();
          }
        }(acceptor, pair ? tls_pair_context(node) : tls_context(head, PeerName::Role::head),
                              refusal),
        asio::detached);
    std::string outcome;
    asio::co_spawn(
        context,
        [](std::uint16_t port, std::shared_ptr<asio::ssl::context> tls, PeerName::Role there,
           std::string& said) -> asio::awaitable<void> {
          try {
            // As much as a door of nodes would take; the connection ends before.
            (void)co_await post_tls("127.0.0.1", port, tls, there, dtrain::testing::kLab,
                                    "/v1/pair/token", std::string(64 << 20, 'x'), 5s);
            said = "answered";
          } catch (const Error& error) {
            said = to_string(error.code());
          }
        }(acceptor.local_endpoint().port(),
                              pair ? tls_pair_context(joining)
                                   : tls_context(joining, PeerName::Role::node),
                              pair ? PeerName::Role::node : PeerName::Role::head, outcome),
        asio::detached);
    context.run();
    CHECK(refusal == "dtrain://lab-abcdef/join/joined-1 has no business here");
    CHECK(outcome == "unreachable");
  }
}

TEST_CASE("whoever shows no certificate is hung up on without a byte of ours") {
  Cluster cluster;
  const fs::path head = cluster.identity(PeerName::Role::head, "head");
  asio::io_context context(1);
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  const auto endpoint = acceptor.local_endpoint();
  Meeting seen;
  asio::co_spawn(context, serve_one(acceptor, head, seen), asio::detached);
  std::string heard;
  asio::co_spawn(
      context,
      [](tcp::endpoint to, std::string& into) -> asio::awaitable<void> {
        tcp::socket socket(co_await asio::this_coro::executor);
        co_await socket.async_connect(to, asio::use_awaitable);
        const std::string request = "GET /v1/node/control HTTP/1.1\r\nHost: x\r\n\r\n";
        co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
        boost::system::error_code ended;
        co_await asio::async_read(socket, asio::dynamic_buffer(into),
                                  asio::redirect_error(asio::use_awaitable, ended));
      }(endpoint, heard),
      asio::detached);
  context.run();
  CHECK(heard.find("HTTP") == std::string::npos);
  CHECK(heard.size() < 16);  // at most a TLS alert
  CHECK(seen.accepted.find("dtrain://") == std::string::npos);
}

TEST_CASE("a peer that says nothing is dropped at the deadline") {
  Cluster cluster;
  const fs::path head = cluster.identity(PeerName::Role::head, "head");
  asio::io_context context(1);
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  tcp::socket silent(context);
  silent.connect(acceptor.local_endpoint());
  std::string outcome;
  asio::co_spawn(
      context,
      [](tcp::acceptor& door, fs::path identity, std::string& said) -> asio::awaitable<void> {
        tcp::socket socket = co_await door.async_accept(asio::use_awaitable);
        try {
          (void)co_await accept_tls(std::move(socket), tls_context(identity, PeerName::Role::head),
                                    50ms);
        } catch (const Error& error) {
          said = to_string(error.code());
        }
      }(acceptor, head, outcome),
      asio::detached);
  context.run();
  CHECK(outcome == "timeout");
}

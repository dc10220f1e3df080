#include "agent/node/door.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr auto kGreeting = 5s;
constexpr auto kAcceptPause = 100ms;

tcp::acceptor listen(const asio::any_io_executor& executor) {
  // Both families where the kernel has them.
  for (const tcp& protocol : {tcp::v6(), tcp::v4()}) {
    tcp::acceptor acceptor(executor);
    error_code failed;
    acceptor.open(protocol, failed);
    if (!failed && protocol == tcp::v6()) {
      acceptor.set_option(asio::ip::v6_only(false), failed);
    }
    if (!failed) acceptor.bind(tcp::endpoint(protocol, 0), failed);
    if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
    if (!failed) return acceptor;
  }
  throw Error(ErrorCode::exhausted, "no port can be opened");
}

}  // namespace

Door::Door(const asio::any_io_executor& executor, const fs::path& identity, ClusterId cluster,
           Serve serve)
    : executor_(executor),
      cluster_(std::move(cluster)),
      tls_(wire::tls_pair_context(identity)),
      serve_(std::move(serve)),
      acceptor_(listen(executor)) {}

std::shared_ptr<Door> Door::open(const asio::any_io_executor& executor, const fs::path& identity,
                                 const ClusterId& cluster, Serve serve) {
  auto door = std::make_shared<Door>(executor, identity, cluster, std::move(serve));
  asio::co_spawn(
      executor, [door] { return door->accept(); }, asio::detached);
  return door;
}

void Door::close() {
  error_code ignored;
  acceptor_.close(ignored);
}

asio::awaitable<void> Door::accept() {
  const auto self = shared_from_this();
  while (acceptor_.is_open()) {
    error_code failed;
    auto socket = std::make_shared<tcp::socket>(
        co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, failed)));
    if (failed && !acceptor_.is_open()) co_return;
    if (failed) {
      // No descriptor is left, say.
      asio::steady_timer pause(executor_, kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      continue;
    }
    asio::co_spawn(
        executor_, [self, socket] { return self->greet(socket); }, asio::detached);
  }
}

asio::awaitable<void> Door::greet(std::shared_ptr<tcp::socket> socket) {
  const auto self = shared_from_this();
  try {
    wire::AcceptedPeer peer = co_await wire::accept_tls(std::move(*socket), tls_, kGreeting, true);
    const wire::FrameStreamPtr stream = peer.stream;
    if (peer.name.cluster != cluster_) {
      stream->abort();
      co_return;
    }
    co_await serve_(std::move(peer));
    stream->close();
  } catch (const std::exception& error) {
    log::debug("one that came to a port for other nodes was hung up on", {{"why", error.what()}});
  }
}

}  // namespace dtrain::node

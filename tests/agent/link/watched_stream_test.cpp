#include "agent/link/watched_stream.hpp"

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

using namespace dtrain;
using namespace std::chrono_literals;

namespace asio = boost::asio;

namespace {

constexpr auto kWatched = 100ms;

// The other side: it sends a piece whenever it is let, and takes all.
class Peer final : public wire::FrameStream {
 public:
  explicit Peer(asio::io_context& context) : let(context, asio::steady_timer::time_point::max()) {}

  asio::awaitable<wire::Frame> read() override {
    boost::system::error_code ignored;
    if (piece == 0) co_await let.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    co_return wire::Frame{false, std::string(piece, 'x')};
  }
  void send(wire::Frame) override {}
  asio::awaitable<void> queue_below(std::size_t) override {
    boost::system::error_code ignored;
    if (piece == 0) co_await let.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  void close() override {}
  void abort() override {}
  bool is_open() const override { return true; }
  std::string local_address() const override { return {}; }
  bool peer_is_here() const override { return true; }

  asio::steady_timer let;
  std::size_t piece = 0;  // bytes that are there; 0: it is waited for
};

struct Watching {
  asio::io_context context;
  std::shared_ptr<Peer> peer = std::make_shared<Peer>(context);
  int slow = 0;
  std::chrono::milliseconds watched = kWatched;
  link::WatchedStream stream{peer, context.get_executor(), [this] { ++slow; }, watched};

  void until_slow(int times) {
    while (slow < times) REQUIRE(context.run_one_for(60s) == 1);
  }
};

}  // namespace

TEST_CASE("watched stream: who sends nothing is told again and again") {
  Watching watching;
  asio::co_spawn(
      watching.context, [&]() -> asio::awaitable<void> { co_await watching.stream.read(); },
      asio::detached);
  watching.until_slow(3);
}

TEST_CASE("watched stream: who takes nothing is told, though much was given to take") {
  Watching watching;
  asio::co_spawn(
      watching.context,
      [&]() -> asio::awaitable<void> {
        watching.stream.send({false, std::string(10000, 'x')});
        co_await watching.stream.queue_below(1);
      },
      asio::detached);
  watching.until_slow(1);
}

TEST_CASE("watched stream: what this side does itself is not counted") {
  Watching watching;
  watching.peer->piece = 1;  // next to nothing, but at once
  asio::steady_timer pause(watching.context);
  bool done = false;
  const auto read = [&]() -> asio::awaitable<void> {
    for (int i = 0; i < 5; ++i) {
      co_await watching.stream.read();
      pause.expires_after(kWatched);
      co_await pause.async_wait(asio::use_awaitable);
    }
    done = true;
  };
  asio::co_spawn(watching.context, read(), asio::detached);
  while (!done) REQUIRE(watching.context.run_one_for(60s) == 1);
  CHECK(watching.slow == 0);
}

TEST_CASE("watched stream: it counts from its beginning") {
  Watching watching;
  watching.peer->piece = 1 << 20;
  bool done = false;
  const auto read = [&]() -> asio::awaitable<void> {
    co_await watching.stream.read();  // enough for the first window
    watching.peer->piece = 0;
    watching.stream.begin();
    co_await watching.stream.read();
    done = true;
  };
  asio::co_spawn(watching.context, read(), asio::detached);
  watching.until_slow(1);
  CHECK_FALSE(done);
}

TEST_CASE("watched stream: one that is idle costs nothing, however much it has waited before") {
  Watching watching{.watched = 1s};
  bool done = false;
  const auto read = [&]() -> asio::awaitable<void> {
    co_await watching.stream.read();
    done = true;
  };
  asio::co_spawn(watching.context, read(), asio::detached);
  watching.peer->let.expires_after(990ms);  // a little is left
  while (!done) REQUIRE(watching.context.run_one_for(60s) == 1);
  CHECK(watching.context.run_for(500ms) <= 15);
}

#include "agent/link/watched_stream.hpp"

#include <optional>
#include <utility>

namespace dtrain::link {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

struct WatchedStream::Watch : std::enable_shared_from_this<WatchedStream::Watch> {
  Watch(const asio::any_io_executor& executor, std::function<void()> tell)
      : timer(executor), slow(std::move(tell)) {}

  void begin() {
    bytes = 0;
    waited = {};
  }
  void wait() {
    since = Clock::now();
    timer.expires_after(kWatched - waited);
    timer.async_wait([weak = weak_from_this()](boost::system::error_code stopped) {
      const auto self = weak.lock();
      if (stopped || !self || !self->since) return;
      const bool is_slow = self->bytes < kSlowest * static_cast<std::uint64_t>(kWatched.count());
      self->begin();
      self->wait();
      if (is_slow) self->slow();
    });
  }
  void go_on(std::size_t came) {
    timer.cancel();
    waited += Clock::now() - since.value_or(Clock::now());
    since.reset();
    bytes += came;
    if (waited >= kWatched) begin();
  }

  asio::steady_timer timer;
  std::function<void()> slow;
  std::uint64_t bytes = 0;                 // since it began
  Clock::duration waited{};                // of that time, up to:
  std::optional<Clock::time_point> since;  // now it waits
};

WatchedStream::WatchedStream(wire::FrameStreamPtr stream, const asio::any_io_executor& executor,
                             std::function<void()> slow)
    : stream_(std::move(stream)), watch_(std::make_shared<Watch>(executor, std::move(slow))) {}

WatchedStream::~WatchedStream() {
  watch_->timer.cancel();
}

void WatchedStream::begin() {
  watch_->begin();
}

asio::awaitable<wire::Frame> WatchedStream::read() {
  const auto watch = watch_;
  watch->wait();
  wire::Frame frame = co_await stream_->read();
  watch->go_on(frame.bytes.size());
  co_return frame;
}

void WatchedStream::send(wire::Frame frame) {
  watch_->bytes += frame.bytes.size();
  stream_->send(std::move(frame));
}

asio::awaitable<void> WatchedStream::queue_below(std::size_t bytes) {
  const auto watch = watch_;
  watch->wait();
  co_await stream_->queue_below(bytes);
  watch->go_on(0);
}

}  // namespace dtrain::link

#include "agent/link/watched_stream.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace dtrain::link {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

struct WatchedStream::Watch : std::enable_shared_from_this<WatchedStream::Watch> {
  Watch(const asio::any_io_executor& executor, std::chrono::milliseconds limit,
        std::function<void()> tell)
      : timer(executor), watched(limit), slow(std::move(tell)) {}

  void begin() {
    bytes = 0;
    waited = {};
    if (since) since = Clock::now();
  }
  void wait() { since = Clock::now(); }
  void go_on(std::size_t came) {
    waited += Clock::now() - *since;
    since.reset();
    bytes += came;
  }
  // Each piece is only noted: the timer looks when so much can have been waited at the earliest,
  // and now and then while this side does not wait.
  void look() {
    const auto all = waited + (since ? Clock::now() - *since : Clock::duration{});
    const bool is_time = all >= watched;
    const bool is_slow = is_time && static_cast<double>(bytes) <
                                        kSlowest * std::chrono::duration<double>(all).count();
    if (is_time) begin();
    timer.expires_after(is_time ? watched : std::max(watched - all, watched / 20));
    timer.async_wait([weak = weak_from_this()](boost::system::error_code stopped) {
      const auto self = weak.lock();
      if (!stopped && self) self->look();
    });
    if (is_slow) slow();
  }

  asio::steady_timer timer;
  const Clock::duration watched;
  const std::function<void()> slow;
  std::uint64_t bytes = 0;                 // since it began
  Clock::duration waited{};                // of that time, up to:
  std::optional<Clock::time_point> since;  // now it waits
};

WatchedStream::WatchedStream(wire::FrameStreamPtr stream, const asio::any_io_executor& executor,
                             std::function<void()> slow, std::chrono::milliseconds watched)
    : stream_(std::move(stream)),
      watch_(std::make_shared<Watch>(executor, watched, std::move(slow))) {
  watch_->look();
}

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

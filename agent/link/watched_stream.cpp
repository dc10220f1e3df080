#include "agent/link/watched_stream.hpp"

#include <utility>

namespace dtrain::link {

namespace asio = boost::asio;

struct WatchedStream::Watch : std::enable_shared_from_this<WatchedStream::Watch> {
  Watch(const asio::any_io_executor& executor, std::function<void()> tell)
      : timer(executor), slow(std::move(tell)) {}

  void look() {
    timer.expires_after(kWatched);
    timer.async_wait([weak = weak_from_this()](boost::system::error_code stopped) {
      const auto self = weak.lock();
      if (stopped || !self) return;
      const bool is_slow = self->bytes < kSlowest * static_cast<std::uint64_t>(kWatched.count());
      self->bytes = 0;
      self->look();
      if (is_slow) self->slow();
    });
  }

  asio::steady_timer timer;
  std::function<void()> slow;
  std::uint64_t bytes = 0;  // since it was looked
};

WatchedStream::WatchedStream(wire::FrameStreamPtr stream, const asio::any_io_executor& executor,
                             std::function<void()> slow)
    : stream_(std::move(stream)), watch_(std::make_shared<Watch>(executor, std::move(slow))) {
  watch_->look();
}

WatchedStream::~WatchedStream() {
  watch_->timer.cancel();
}

asio::awaitable<wire::Frame> WatchedStream::read() {
  wire::Frame frame = co_await stream_->read();
  watch_->bytes += frame.bytes.size();
  co_return frame;
}

void WatchedStream::send(wire::Frame frame) {
  watch_->bytes += frame.bytes.size();
  stream_->send(std::move(frame));
}

asio::awaitable<void> WatchedStream::queue_below(std::size_t bytes) {
  co_await stream_->queue_below(bytes);
}

}  // namespace dtrain::link

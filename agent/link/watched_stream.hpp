#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launcher/wire/frames.hpp"

namespace dtrain::link {

// A connection by which content comes or goes. When this side has waited for the other for
// kWatched, and fewer than kSlowest bytes a second came or went meanwhile, `slow` is called; again
// after the next such time. What this side does itself is not counted. On the executor's thread, as
// all of it.
class WatchedStream final : public wire::FrameStream {
 public:
  static constexpr std::chrono::seconds kWatched{20};
  static constexpr std::uint64_t kSlowest = std::uint64_t{256} << 10;

  WatchedStream(wire::FrameStreamPtr stream, const boost::asio::any_io_executor& executor,
                std::function<void()> slow, std::chrono::milliseconds watched = kWatched);
  ~WatchedStream() override;

  void begin();  // it counts from now on

  boost::asio::awaitable<wire::Frame> read() override;
  void send(wire::Frame frame) override;
  boost::asio::awaitable<void> queue_below(std::size_t bytes) override;
  void close() override { stream_->close(); }
  void abort() override { stream_->abort(); }
  bool is_open() const override { return stream_->is_open(); }
  std::string local_address() const override { return stream_->local_address(); }
  bool peer_is_here() const override { return stream_->peer_is_here(); }

 private:
  struct Watch;
  wire::FrameStreamPtr stream_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace dtrain::link

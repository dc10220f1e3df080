#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "launcher/core/ids.hpp"
#include "launcher/wire/frames.hpp"

// Nodes' connections for content, each served on a thread that is not the engine's.
namespace dtrain::head {

// From its call to its end. What stands above the line never changes; the rest is the executor's.
struct Guest {
  NodeId node;
  boost::asio::any_io_executor executor;
  // ----
  wire::FrameStreamPtr stream;  // null until it has been given its WebSocket
  bool ended = false;
  std::function<void()> at_end;  // called when it is hung up on
};
using GuestPtr = std::shared_ptr<Guest>;

// Drops its connection. Any thread.
void hang_up(const GuestPtr& guest);

// All on the engine's thread.
class Guests {
 public:
  // `serve` is awaited on the executor, with the stream; it throws nothing.
  void let_in(const wire::CallerPtr& caller, boost::asio::any_io_executor executor,
              std::function<boost::asio::awaitable<void>(GuestPtr)> serve);
  // Those of the node get nothing any more, in the middle of a file too.
  void end(const NodeId& node);

 private:
  std::multimap<NodeId, std::weak_ptr<Guest>> guests_;
};

// What `work` returns or throws on the thread of `there`; awaited on another.
template <typename Work>
boost::asio::awaitable<std::invoke_result_t<Work>> ask(boost::asio::io_context& there, Work work) {
  const auto task = [](Work mine) -> boost::asio::awaitable<std::invoke_result_t<Work>> {
    co_return mine();
  };
  co_return co_await boost::asio::co_spawn(there, task(std::move(work)),
                                           boost::asio::use_awaitable);
}

}  // namespace dtrain::head

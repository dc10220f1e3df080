#include "agent/head/server/guests.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

namespace dtrain::head {

namespace asio = boost::asio;

void hang_up(const GuestPtr& guest) {
  asio::post(guest->executor, [guest] {
    guest->ended = true;
    if (guest->stream) guest->stream->abort();
    if (guest->at_end) guest->at_end();
  });
}

void Guests::let_in(const wire::CallerPtr& caller, asio::any_io_executor executor,
                    std::function<asio::awaitable<void>(GuestPtr)> serve) {
  const auto guest =
      std::make_shared<Guest>(Guest{caller->name().node, std::move(executor), nullptr, false, {}});
  const auto [first, last] = guests_.equal_range(guest->node);
  for (auto at = first; at != last;) {
    at = at->second.expired() ? guests_.erase(at) : std::next(at);
  }
  guests_.emplace(guest->node, guest);
  caller->accept_on(
      guest->executor,
      [guest, serve = std::move(serve)](wire::FrameStreamPtr stream) {
        guest->stream = std::move(stream);
        if (guest->ended) {
          guest->stream->abort();
          return;
        }
        asio::co_spawn(guest->executor, serve(guest), asio::detached);
      },
      /*patient=*/true);
}

void Guests::end(const NodeId& node) {
  const auto [first, last] = guests_.equal_range(node);
  for (auto at = first; at != last; ++at) {
    if (const GuestPtr guest = at->second.lock()) hang_up(guest);
  }
}

}  // namespace dtrain::head

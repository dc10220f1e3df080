#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "agent/head/server/distribution.hpp"
#include "agent/head/server/guests.hpp"
#include "agent/link/content_exchange.hpp"
#include "launcher/wire/node.hpp"

// The nodes that want content, by turns: each has it from the head, or is sent to a node that gives
// it (Distribution).
namespace dtrain::head {

class Turns {
 public:
  // Of less everybody has his at once: its bytes are less than what waiting costs.
  static constexpr std::uint64_t kFrom = std::uint64_t{1} << 20;

  // `address_of`, on the engine's thread: where other nodes reach a node; empty: they do not, and
  // it gives nothing.
  Turns(boost::asio::io_context& engine_context,
        std::function<std::string(const NodeId&)> address_of,
        const Distribution::Limits& limits = {});
  // Once no guest is served any more, and before what served them is gone.
  void stop();

  // Awaited on the guest's executor, as what follows: answers what the guest asks for, which is
  // part of `what`, until it hangs up (Error(unreachable)). One that knows nothing of `elsewhere`
  // has everything from here, and at once.
  boost::asio::awaitable<void> give_all(GuestPtr guest, std::string what, bool elsewhere,
                                        link::Source source, bool zstd);
  // The guest gives it; until either side hangs up.
  boost::asio::awaitable<void> hear_offer(GuestPtr guest, std::string what,
                                          wire::ContentOffer offer);
  // Nobody gives the node anything any more, in the middle of a file too. The engine's thread.
  void forbid(const NodeId& node);

 private:
  struct Seat;
  boost::asio::awaitable<std::optional<Distribution::Giver>> decided(GuestPtr guest, Seat& seat,
                                                                     bool missed);
  boost::asio::awaitable<bool> sent_elsewhere(GuestPtr guest, Seat& seat,
                                              std::optional<wire::ContentMessage>& next);
  // On the engine's thread, unless all has ended.
  void post(std::function<void()> work);
  void look();

  boost::asio::io_context& context_;
  // The engine's thread's.
  std::function<std::string(const NodeId&)> address_of_;
  Distribution distribution_;
  boost::asio::steady_timer next_look_;
  std::list<std::weak_ptr<Guest>> givers_;
  // Guests may be ended after this, with what is left on their thread.
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrain::head

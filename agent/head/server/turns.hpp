#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/head/server/distribution.hpp"
#include "agent/head/server/guests.hpp"
#include "launcher/wire/node.hpp"

// The nodes that want content, one after the other: each has it from the head, or is sent to a node
// that gives it (Distribution).
namespace dtrain::head {

class Turns {
 public:
  // What is smaller goes to everybody at once: its bytes are less than what waiting costs.
  static constexpr std::uint64_t kSpreadFrom = std::uint64_t{1} << 20;

  // `address_of`, on the engine's thread: where other nodes reach a node; empty: they do not, and
  // it gives nothing.
  Turns(boost::asio::io_context& engine_context,
        std::function<std::string(const NodeId&)> address_of,
        const Distribution::Limits& limits = {});

  // Awaited on the guest's executor, as what follows. Returns when the head is to give it to the
  // guest, which counts as long as what is returned lives. Throws Error(unreachable) when the guest
  // has it from elsewhere, or is gone; Error(invalid) for a guest that says anything else.
  boost::asio::awaitable<std::shared_ptr<void>> turn(GuestPtr guest, std::string what,
                                                     std::uint64_t bytes);
  // The guest gives it; until either side hangs up.
  boost::asio::awaitable<void> offered(GuestPtr guest, std::string what, wire::ContentOffer offer);

 private:
  struct Seat;
  boost::asio::awaitable<std::optional<Distribution::Giver>> decided(std::shared_ptr<Seat> seat,
                                                                     bool missed);
  void look();

  boost::asio::io_context& context_;
  // The engine's thread's.
  std::function<std::string(const NodeId&)> address_of_;
  Distribution distribution_;
  boost::asio::steady_timer next_look_;
  // Guests may be ended after it, with what their thread or the engine's has left.
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrain::head

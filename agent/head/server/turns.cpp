#include "agent/head/server/turns.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "agent/link/content_exchange.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using Giver = Distribution::Giver;

namespace {

Distribution::Time now() {
  return std::chrono::steady_clock::now();
}

}  // namespace

// A guest's wish, from its asking to its end.
struct Turns::Seat {
  Seat(Turns& all, std::string wanted, std::uint64_t size, NodeId by)
      : turns(all), alive(all.alive_), what(std::move(wanted)), bytes(size), node(std::move(by)) {}
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  Turns& turns;
  const std::weak_ptr<int> alive;
  const std::string what;
  const std::uint64_t bytes;
  const NodeId node;
  Distribution::Number number = 0;  // the engine's thread's

  ~Seat() {
    if (number == 0 || alive.expired()) return;
    asio::post(turns.context_, [&all = turns, number = number] {
      all.distribution_.over(number, now());
      all.look();
    });
  }
};

Turns::Turns(asio::io_context& engine_context, std::function<std::string(const NodeId&)> address_of,
             const Distribution::Limits& limits)
    : context_(engine_context),
      address_of_(std::move(address_of)),
      distribution_(limits),
      next_look_(engine_context) {}

// On the engine's thread.
asio::awaitable<std::optional<Giver>> Turns::decided(std::shared_ptr<Seat> seat, bool missed) {
  asio::steady_timer ready(context_, asio::steady_timer::time_point::max());
  std::optional<std::optional<Giver>> answer;
  const Distribution::Decided decide = [&](const std::optional<Giver>& giver) {
    answer = giver;
    ready.cancel();
  };
  if (missed) {
    distribution_.missed(seat->number, now(), decide);
  } else {
    seat->number = distribution_.want(seat->what, seat->bytes, seat->node, now(), decide);
  }
  look();
  while (!answer) {
    error_code ignored;
    co_await ready.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return *answer;
}

asio::awaitable<std::shared_ptr<void>> Turns::turn(GuestPtr guest, std::string what,
                                                   std::uint64_t bytes) {
  const auto seat = std::make_shared<Seat>(*this, std::move(what), bytes, guest->node);
  for (bool missed = false;; missed = true) {
    const std::optional<Giver> giver =
        co_await asio::co_spawn(context_, decided(seat, missed), asio::use_awaitable);
    if (!giver) co_return seat;
    link::say(guest->stream,
              wire::ContentElsewhere{giver->node, giver->address, giver->port, giver->token});
    const wire::ContentMessage message = co_await link::hear(guest->stream);
    const auto* said = std::get_if<wire::ContentMissed>(&message);
    if (said == nullptr) {
      throw Error(ErrorCode::invalid, "an unexpected message of one that was sent elsewhere");
    }
    log::info("content was not had from another node, and comes from here",
              {{"node", guest->node.str()}, {"from", giver->node.str()}, {"why", said->why}});
  }
}

asio::awaitable<void> Turns::offered(GuestPtr guest, std::string what, wire::ContentOffer offer) {
  const auto begin = [this, guest, &what, &offer]() -> Distribution::Number {
    const std::string address = address_of_(guest->node);
    if (address.empty()) return 0;
    return distribution_.offer(what, {guest->node, address, offer.port, offer.token}, now(),
                               [guest] { hang_up(guest); });
  };
  const Distribution::Number number = co_await ask(context_, begin);
  if (number == 0) co_return;
  const std::shared_ptr<void> withdraw(
      nullptr, [this, number, alive = std::weak_ptr(alive_)](void*) {
        if (alive.expired()) return;
        asio::post(context_, [this, number] { distribution_.withdraw(number); });
      });
  asio::post(context_, [this] { look(); });
  co_await link::hear(guest->stream);
  throw Error(ErrorCode::invalid, "an unexpected message of one that gives");
}

void Turns::look() {
  distribution_.look(now());
  const auto next = distribution_.next_look();
  if (!next) {
    next_look_.cancel();
    return;
  }
  next_look_.expires_at(*next);
  next_look_.async_wait([this](error_code stopped) {
    if (!stopped) look();
  });
}

}  // namespace dtrain::head

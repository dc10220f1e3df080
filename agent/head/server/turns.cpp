#include "agent/head/server/turns.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "agent/link/watched_stream.hpp"
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

// Where a guest waits for what is decided on another thread. Its own thread's.
struct Waiter {
  explicit Waiter(const asio::any_io_executor& executor)
      : ready(executor, asio::steady_timer::time_point::max()) {}

  asio::steady_timer ready;
  std::optional<std::optional<Giver>> answer;
};

}  // namespace

// A guest's wish: begun with the first large want, over with the connection.
struct Turns::Seat {
  Seat(Turns& all, std::string wanted, NodeId by)
      : turns(all), alive(all.alive_), what(std::move(wanted)), node(std::move(by)) {}
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;
  ~Seat() { leave(); }

  void leave() {
    by_head = false;
    is_heads = false;
    if (!std::exchange(begun, false) || alive.expired()) return;
    turns.post([&all = turns, number = std::exchange(number, nullptr)] {
      all.distribution_.over(*number, now());
    });
  }

  Turns& turns;
  const std::weak_ptr<int> alive;
  const std::string what;
  const NodeId node;
  bool begun = false;
  bool is_heads = false;                         // its next want is answered here
  bool by_head = false;                          // it is, or was, given to from here
  std::shared_ptr<Distribution::Number> number;  // what it holds is the engine's thread's
};

Turns::Turns(asio::io_context& engine_context, std::function<std::string(const NodeId&)> address_of,
             const Distribution::Limits& limits)
    : context_(engine_context),
      address_of_(std::move(address_of)),
      distribution_(limits),
      next_look_(engine_context) {}

void Turns::stop() {
  alive_.reset();  // what is posted still does nothing
  distribution_.clear();
}

void Turns::post(std::function<void()> work) {
  asio::post(context_, [this, alive = std::weak_ptr(alive_), work = std::move(work)] {
    if (alive.expired()) return;
    work();
    look();
  });
}

asio::awaitable<std::optional<Giver>> Turns::decided(GuestPtr guest, Seat& seat, bool missed) {
  const auto waiter = std::make_shared<Waiter>(guest->executor);
  if (!missed) seat.number = std::make_shared<Distribution::Number>(0);
  seat.begun = true;
  const Distribution::Decided decide = [executor = guest->executor, weak = std::weak_ptr(waiter)](
                                           const std::optional<Giver>& giver) {
    asio::post(executor, [weak, giver] {
      const auto waits = weak.lock();
      if (!waits) return;
      waits->answer = giver;
      waits->ready.cancel();
    });
  };
  post([this, number = seat.number, what = seat.what, node = seat.node, missed, decide] {
    if (missed) {
      distribution_.missed(*number, now(), decide);
    } else {
      *number = distribution_.want(what, node, decide);
    }
  });
  guest->at_end = [weak = std::weak_ptr(waiter)] {
    if (const auto waits = weak.lock()) waits->ready.cancel();
  };
  while (!waiter->answer) {
    if (guest->ended) throw Error(ErrorCode::unreachable, "the connection was ended");
    error_code ignored;
    co_await waiter->ready.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return *waiter->answer;
}

// Waits for the guest's turn. True when it was sent elsewhere, and says `next`.
asio::awaitable<bool> Turns::sent_elsewhere(GuestPtr guest, Seat& seat,
                                            std::optional<wire::ContentMessage>& next) {
  const std::optional<Giver> giver = co_await decided(guest, seat, false);
  if (!giver) co_return false;
  link::say(guest->stream,
            wire::ContentElsewhere{giver->node, giver->address, giver->port, giver->token});
  next = co_await link::hear(guest->stream);
  const auto* said = std::get_if<wire::ContentMissed>(&*next);
  if (said == nullptr) co_return true;
  log::info("content was not had from another node, and comes from here",
            {{"node", guest->node.str()}, {"from", giver->node.str()}, {"why", said->why}});
  co_await decided(guest, seat, true);
  seat.is_heads = true;
  next.reset();
  co_return true;
}

asio::awaitable<void> Turns::give_all(GuestPtr guest, std::string what, bool elsewhere,
                                      link::Source source, bool zstd) {
  if (!elsewhere) {
    co_await link::give_all(guest->stream, source, zstd);
    co_return;
  }
  Seat seat(*this, std::move(what), guest->node);
  const auto slow = [this, &seat] {
    if (!seat.by_head) return;
    log::info("a node takes next to nothing, and keeps no other waiting for it",
              {{"node", seat.node.str()}});
    post([this, number = seat.number] { distribution_.slow(*number, now()); });
  };
  const auto stream = std::make_shared<link::WatchedStream>(guest->stream, guest->executor, slow);
  std::optional<wire::ContentMessage> next;
  while (true) {
    if (!next) next = co_await link::hear(stream);
    const wire::ContentMessage message = *std::exchange(next, std::nullopt);
    if (std::holds_alternative<wire::ContentWhole>(message)) {
      const auto ask_others = [this, number = seat.number, node = guest->node] {
        if (!number || address_of_(node).empty()) return false;
        const bool waits = distribution_.whole(*number, now());
        look();
        return waits;
      };
      const bool wanted = co_await ask(context_, ask_others);
      link::say(stream, wire::ContentWanted{wanted});
      continue;
    }
    const auto* want = std::get_if<wire::ContentWant>(&message);
    if (want == nullptr) throw Error(ErrorCode::invalid, "an unexpected message of content");
    const bool by_turn = link::bytes_of(*want, source) >= kFrom;
    if (by_turn && !std::exchange(seat.is_heads, false)) {
      seat.leave();  // one want at a time
      const bool is_sent = co_await sent_elsewhere(guest, seat, next);
      if (is_sent) continue;
    }
    if (by_turn) seat.by_head = true;
    stream->begin();
    co_await link::give(stream, *want, source, zstd, by_turn);
  }
}

asio::awaitable<void> Turns::hear_offer(GuestPtr guest, std::string what,
                                        wire::ContentOffer offer) {
  const std::weak_ptr<Guest> weak = guest;
  const auto begin = [this, weak, node = guest->node, what, offer]() -> Distribution::Number {
    const std::string address = address_of_(node);
    if (address.empty()) return 0;
    std::erase_if(givers_, [](const auto& each) { return each.expired(); });
    givers_.push_back(weak);
    const auto dismiss = [weak] {
      if (const GuestPtr gives = weak.lock()) hang_up(gives);
    };
    const Giver giver{node, address, offer.port, offer.token};
    const Distribution::Number number = distribution_.offer(what, giver, now(), dismiss);
    look();
    return number;
  };
  const Distribution::Number number = co_await ask(context_, begin);
  if (number == 0) co_return;
  const auto withdraw = [this, number, alive = std::weak_ptr(alive_)](void*) {
    if (!alive.expired()) post([this, number] { distribution_.withdraw(number); });
  };
  const std::shared_ptr<void> at_end(nullptr, withdraw);
  co_await link::hear(guest->stream);
  throw Error(ErrorCode::invalid, "an unexpected message of one that gives");
}

void Turns::forbid(const NodeId& node) {
  for (const std::weak_ptr<Guest>& each : givers_) {
    const GuestPtr gives = each.lock();
    if (!gives) continue;
    asio::post(gives->executor, [gives, node] {
      if (gives->stream) link::say(gives->stream, wire::ContentForbidden{node});
    });
  }
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

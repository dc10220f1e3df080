#include "agent/head/server/greeter.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <utility>

#include "agent/head/server/joins.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr auto kGreetingLimit = 10s;
constexpr auto kTellDropsEvery = 1min;
// Connections that have not proven who they are, of one address and in all; docs/ssh.md. A thousand
// nodes have room, behind one address too.
constexpr std::size_t kMostGreetingsOfSource = 1024;
constexpr std::size_t kMostGreetings = 2048;

// The rest of this process's descriptors is for those who have.
std::size_t at_most(std::size_t wanted, rlim_t part) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  return std::clamp<std::size_t>(files.rlim_cur / part, 1, wanted);
}

// Whom an address belongs to: of IPv6 anybody has 64 bits to choose from.
std::string source_of(const asio::ip::address& address) {
  if (address.is_v4() || address.to_v6().is_v4_mapped()) return address.to_string();
  return asio::ip::make_network_v6(address.to_v6(), 64).network().to_string();
}

}  // namespace

Greeter::Greeter(asio::io_context& here, HeadPort& port, asio::io_context& there, fs::path identity,
                 Take take)
    : here_(here),
      there_(there),
      identity_folder_(std::move(identity)),
      take_(std::move(take)),
      work_(here_.get_executor()),
      greetings_(at_most(kMostGreetingsOfSource, 8), at_most(kMostGreetings, 4)) {
  // Out of descriptors: one of those that prove nothing gives its own up.
  port.serve([this](tcp::socket socket) { greet(std::move(socket)); },
             [this] {
               if (greetings_.drop_one()) tell_drops();
             });
  thread_ = std::thread([this] { here_.run(); });
}

Greeter::~Greeter() {
  here_.stop();
  thread_.join();
}

// From here until it has proven who it is, it may be dropped for another.
void Greeter::greet(tcp::socket socket) {
  error_code unknown;
  const auto remote = socket.remote_endpoint(unknown);
  if (unknown) return;  // it is gone again
  const auto end = std::make_shared<asio::cancellation_signal>();
  const std::uint64_t number = greetings_.enter(
      source_of(remote.address()), [end] { end->emit(asio::cancellation_type::terminal); });
  tell_drops();
  asio::co_spawn(
      here_, welcome(std::move(socket), number),
      asio::bind_cancellation_slot(end->slot(), [this, end, number](const std::exception_ptr&) {
        greetings_.leave(number);
      }));
}

std::shared_ptr<asio::ssl::context> Greeter::own_identity() {
  const auto written = fs::last_write_time(identity_folder_ / "cert.pem");
  if (!identity_ || written != identity_written_) {
    identity_ = wire::tls_context(identity_folder_, wire::PeerName::Role::head);
    identity_written_ = written;
  }
  return identity_;
}

void Greeter::tell_drops() {
  const auto now = std::chrono::steady_clock::now();
  if (greetings_.dropped() == drops_told_ || now - drops_told_at_ < kTellDropsEvery) return;
  log::warn("connections that did not say who they are were dropped for others",
            {{"count", std::to_string(greetings_.dropped() - drops_told_)}});
  drops_told_ = greetings_.dropped();
  drops_told_at_ = now;
}

asio::awaitable<void> Greeter::welcome(tcp::socket socket, std::uint64_t number) {
  try {
    Greeted greeted;
    greeted.caller = co_await wire::greet_tls(std::move(socket), own_identity(), kGreetingLimit,
                                              wire::Callers::nodes_and_joining);
    const bool joins = greeted.caller->name().role == wire::PeerName::Role::join;
    if (joins && greeted.caller->method() == "POST") {
      try {
        greeted.body = co_await greeted.caller->body(Joins::kRequestLimit);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::exhausted) throw;
        greeted.no_body = error;
      }
    }
    // From here on this thread has nothing to do with it.
    greetings_.leave(number);
    asio::post(there_, [take = take_, greeted = std::move(greeted)]() mutable {
      take(std::move(greeted));
    });
  } catch (const std::exception& error) {
    log::debug("a connection ended", {{"reason", error.what()}});  // strangers fill no log
  }
}

}  // namespace dtrain::head

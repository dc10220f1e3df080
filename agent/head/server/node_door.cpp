#include "agent/head/server/node_door.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/head/server/joins.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr auto kGreetingLimit = 10s;
constexpr auto kLookAtCertificate = 1h;
constexpr auto kTellDropsEvery = 1min;
// Connections that have not proven who they are, of one address and in all; docs/ssh.md.
constexpr std::size_t kMostGreetingsOfSource = 64;
constexpr std::size_t kMostGreetings = 256;

// The rest of this process's descriptors is for those who have.
std::size_t most_greetings() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return kMostGreetings;
  return std::clamp<std::size_t>(files.rlim_cur / 4, 1, kMostGreetings);
}

// Whom an address belongs to: of IPv6 anybody has 64 bits to choose from.
std::string source_of(const asio::ip::address& address) {
  if (address.is_v4() || address.to_v6().is_v4_mapped()) return address.to_string();
  return asio::ip::make_network_v6(address.to_v6(), 64).network().to_string();
}

}  // namespace

NodeDoor::NodeDoor(asio::io_context& context, ConfigFile& config)
    : context_(context),
      config_(config),
      port_(context,
            config_->is_local() ? HeadPort::Reach::this_machine : HeadPort::Reach::everybody),
      greetings_(kMostGreetingsOfSource, most_greetings()) {}

void NodeDoor::listen() {
  const int kept = config_->wanted_port != 0 ? config_->wanted_port : config_->port;
  std::vector<int> ports;
  if (kept != 0) ports.push_back(kept);
  // Nodes of this machine read the port from head.json, those of a head that moves where it is now;
  // others know it from `up` alone.
  const bool is_told = config_->is_local() || config_->moves;
  if (kept == 0 || (config_->wanted_port == 0 && is_told)) {
    for (int port = kFirstPort; port <= kLastPort; ++port) ports.push_back(port);
  }
  if (const int opened = port_.open(ports)) {
    config_.set_port(opened);
    return;
  }
  if (kept == 0) {
    throw Error(ErrorCode::exhausted, "no port from " + std::to_string(kFirstPort) + " to " +
                                          std::to_string(kLastPort) + " is free")
        .with_hint("set provider.head_port to a free port");
  }
  problem_ = "port " + std::to_string(kept) +
             " is taken by another program; no node can join until it is free";
  log::error("the head cannot listen", {{"why", problem_}});
  asio::co_spawn(context_, wait_for_port(kept), asio::detached);
}

asio::awaitable<void> NodeDoor::wait_for_port(int port) {
  co_await port_.open_when_free(port);
  problem_.clear();
  log::info("the head's port is free again", {{"port", std::to_string(port)}});
  if (config_->port == port) co_return;
  config_.change([port](HeadConfig& config) { config.port = port; },
                 [](const std::optional<Error>& failed) {
                   if (failed) log::error("the head's port is not kept", {{"why", failed->what()}});
                 });
}

void NodeDoor::serve(Joins& joins, LetIn let_in) {
  joins_ = &joins;
  let_in_ = std::move(let_in);
  // Out of descriptors: one of those that prove nothing gives its own up.
  port_.serve([this](tcp::socket socket) { greet(std::move(socket)); },
              [this] {
                if (greetings_.drop_one()) tell_drops();
              });
  asio::co_spawn(context_, keep_own_certificate(), asio::detached);
}

// Half of its life is over: a new one, from our own CA. Read anew at each connection.
asio::awaitable<void> NodeDoor::keep_own_certificate() {
  asio::steady_timer timer(context_);
  while (true) {
    try {
      if (renew_head(config_.root(), std::chrono::system_clock::now())) {
        log::info("the head's certificate is renewed");
      }
    } catch (const Error& error) {
      log::warn("the head's certificate cannot be renewed", {{"why", error.what()}});
    }
    timer.expires_after(kLookAtCertificate);
    error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

// From here until it has proven who it is, it may be dropped for another.
void NodeDoor::greet(tcp::socket socket) {
  error_code unknown;
  const auto remote = socket.remote_endpoint(unknown);
  if (unknown) return;  // it is gone again
  const auto end = std::make_shared<asio::cancellation_signal>();
  const std::uint64_t number = greetings_.enter(
      source_of(remote.address()), [end] { end->emit(asio::cancellation_type::terminal); });
  tell_drops();
  asio::co_spawn(
      context_, welcome(std::move(socket), number),
      asio::bind_cancellation_slot(end->slot(), [this, end, number](const std::exception_ptr&) {
        greetings_.leave(number);
      }));
}

// Read anew when it has been written anew: a renewed identity counts at once, and whoever only
// knocks costs little.
std::shared_ptr<asio::ssl::context> NodeDoor::own_identity() {
  const auto written = fs::last_write_time(config_.root().identity() / "cert.pem");
  if (!identity_ || written != identity_written_) {
    identity_ = wire::tls_context(config_.root().identity(), wire::PeerName::Role::head);
    identity_written_ = written;
  }
  return identity_;
}

void NodeDoor::tell_drops() {
  const auto now = std::chrono::steady_clock::now();
  if (greetings_.dropped() == drops_told_ || now - drops_told_at_ < kTellDropsEvery) return;
  log::warn("connections that did not say who they are were dropped for others",
            {{"count", std::to_string(greetings_.dropped() - drops_told_)}});
  drops_told_ = greetings_.dropped();
  drops_told_at_ = now;
}

asio::awaitable<void> NodeDoor::welcome(tcp::socket socket, std::uint64_t number) {
  bool proven = false;
  try {
    const auto tls = own_identity();
    const wire::CallerPtr caller = co_await wire::greet_tls(std::move(socket), tls, kGreetingLimit,
                                                            wire::Callers::nodes_and_joining);
    if (caller->name().role == wire::PeerName::Role::join) {
      co_await joins_->serve(caller);
      co_return;
    }
    const wire::PeerName& name = caller->name();
    if (name.cluster == config_->cluster && joins_->has_left(name.node) &&
        caller->path() == "/v1/node/control") {
      co_await send_away(caller);
      co_return;
    }
    if (name.cluster != config_->cluster || !config_.is_let_in(name.node)) {
      throw Error(ErrorCode::denied, name.uri() + " is not let in");
    }
    const JoinRecord* join = joins_->of(name.node);
    if (join != nullptr && !counts_for(*join, caller->certified())) {
      throw Error(ErrorCode::denied, name.uri() + " shows what it was given before it came again");
    }
    proven = true;
    greetings_.leave(number);
    co_await let_in_(caller);
  } catch (const std::exception& error) {
    // Strangers shall not fill the log either.
    const log::Level level = proven ? log::Level::info : log::Level::debug;
    log::write(level, "a connection ended", {{"reason", error.what()}});
  }
}

// One that joined by itself and was away when it was removed: nobody else can tell it.
asio::awaitable<void> NodeDoor::send_away(wire::CallerPtr caller) {
  const wire::FrameStreamPtr stream = co_await caller->accept();
  (void)co_await stream->read();  // its hello
  const wire::HeadMessage leave = wire::Shutdown{true};
  stream->send_text(wire::dump(wire::to_json(leave)));
  stream->close();
  log::info("a node that was removed is back, and was told to leave",
            {{"node", caller->name().node.str()}});
}

}  // namespace dtrain::head

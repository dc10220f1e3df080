#include "agent/head/server/node_door.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
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
using namespace std::chrono_literals;

namespace {

constexpr auto kLookAtCertificate = 1h;

}  // namespace

NodeDoor::NodeDoor(asio::io_context& context, asio::io_context& greeting, ConfigFile& config)
    : context_(context),
      greeting_(greeting),
      config_(config),
      port_(greeting,
            config_->is_local() ? HeadPort::Reach::this_machine : HeadPort::Reach::everybody) {}

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
  asio::co_spawn(greeting_, port_.open_when_free(kept), [this, kept](const std::exception_ptr&) {
    asio::post(context_, [this, kept] { opened(kept); });
  });
}

void NodeDoor::opened(int port) {
  problem_.clear();
  log::info("the head's port is free again", {{"port", std::to_string(port)}});
  if (config_->port == port) return;
  config_.change([port](HeadConfig& config) { config.port = port; },
                 [](const std::optional<Error>& failed) {
                   if (failed) log::error("the head's port is not kept", {{"why", failed->what()}});
                 });
}

void NodeDoor::serve(Joins& joins, LetIn let_in) {
  joins_ = &joins;
  let_in_ = std::move(let_in);
  greeter_.emplace(greeting_, port_, context_, config_.root().identity(),
                   [this](Greeter::Greeted greeted) { take(std::move(greeted)); });
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

void NodeDoor::take(Greeter::Greeted greeted) {
  const wire::CallerPtr& caller = greeted.caller;
  const wire::PeerName& name = caller->name();
  try {
    if (name.role == wire::PeerName::Role::join) {
      asio::co_spawn(context_, joins_->serve(std::move(greeted)), asio::detached);
      return;
    }
    if (name.cluster == config_->cluster && joins_->has_left(name.node) &&
        caller->path() == "/v1/node/control") {
      return send_away(caller);
    }
    if (name.cluster != config_->cluster || !config_.is_let_in(name.node)) {
      throw Error(ErrorCode::denied, name.uri() + " is not let in");
    }
    const JoinRecord* join = joins_->of(name.node);
    if (join != nullptr && !counts_for(*join, caller->certified())) {
      throw Error(ErrorCode::denied, name.uri() + " shows what it was given before it came again");
    }
    let_in_(caller);
  } catch (const std::exception& error) {
    log::debug("a connection ended", {{"reason", error.what()}});  // strangers fill no log
  }
}

// One that joined by itself and was away when it was removed: nobody else can tell it.
void NodeDoor::send_away(const wire::CallerPtr& caller) {
  const std::string node = caller->name().node.str();
  caller->accept_on(context_.get_executor(), [this, node](wire::FrameStreamPtr stream) {
    asio::co_spawn(
        context_,
        [stream = std::move(stream), node]() -> asio::awaitable<void> {
          (void)co_await stream->read();  // its hello
          const wire::HeadMessage leave = wire::Shutdown{true};
          stream->send_text(wire::dump(wire::to_json(leave)));
          stream->close();
          log::info("a node that was removed is back, and was told to leave", {{"node", node}});
        },
        [](const std::exception_ptr&) {});
  });
}

}  // namespace dtrain::head

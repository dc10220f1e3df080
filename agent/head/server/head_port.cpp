#include "agent/head/server/head_port.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr auto kTryAgain = 500ms;
constexpr auto kNoDescriptors = 100ms;

// This machine, or a container's network, has no addresses of the family.
bool no_such_family(const error_code& failed) {
  return failed == asio::error::address_family_not_supported ||
         failed == boost::system::errc::address_not_available;
}

}  // namespace

HeadPort::HeadPort(asio::io_context& context, Reach reach) : context_(context), reach_(reach) {}

bool HeadPort::try_port(int port) {
  std::vector<std::unique_ptr<Acceptor>> opened;
  for (const tcp& family : {tcp::v6(), tcp::v4()}) {
    const auto number = static_cast<std::uint16_t>(port);
    tcp::endpoint endpoint(family, number);
    if (reach_ == Reach::this_machine) {
      endpoint.address(family == tcp::v6() ? asio::ip::address(asio::ip::address_v6::loopback())
                                           : asio::ip::address(asio::ip::address_v4::loopback()));
    }
    auto acceptor = std::make_unique<Acceptor>(context_);
    error_code failed;
    acceptor->open(family, failed);
    if (!failed) acceptor->set_option(asio::socket_base::reuse_address(true), failed);
    // So that the two families do not meet, whatever the machine's default is.
    if (!failed && family == tcp::v6()) acceptor->set_option(asio::ip::v6_only(true), failed);
    if (!failed) acceptor->bind(endpoint, failed);
    if (!failed) acceptor->listen(asio::socket_base::max_listen_connections, failed);
    if (no_such_family(failed)) continue;
    if (failed) return false;
    opened.push_back(std::move(acceptor));
  }
  if (opened.empty()) return false;
  acceptors_ = std::move(opened);
  if (take_) accept();
  return true;
}

int HeadPort::open(const std::vector<int>& ports) {
  for (const int port : ports) {
    if (try_port(port)) return port;
  }
  return 0;
}

asio::awaitable<void> HeadPort::open_when_free(int port) {
  asio::steady_timer timer(context_);
  while (!try_port(port)) {
    timer.expires_after(kTryAgain);
    error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void HeadPort::serve(std::function<void(tcp::socket)> take, std::function<void()> full) {
  take_ = std::move(take);
  full_ = std::move(full);
  accept();
}

void HeadPort::accept() {
  for (const auto& acceptor : acceptors_) {
    asio::co_spawn(context_, accept_from(*acceptor), asio::detached);
  }
}

asio::awaitable<void> HeadPort::accept_from(Acceptor& acceptor) {
  while (true) {
    error_code failed;
    tcp::socket socket =
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, failed));
    if (failed == asio::error::operation_aborted) co_return;
    if (failed) {  // not a reason to spin
      full_();
      asio::steady_timer pause(context_, kNoDescriptors);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      continue;
    }
    take_(std::move(socket));
  }
}

}  // namespace dtrain::head

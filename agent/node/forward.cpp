#include "agent/node/forward.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <deque>

#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

class Forwards::Tunnel : public std::enable_shared_from_this<Forwards::Tunnel> {
 public:
  Tunnel(asio::any_io_executor executor, std::string exec, wire::FrameStreamPtr bulk)
      : executor_(std::move(executor)),
        exec_(std::move(exec)),
        bulk_(std::move(bulk)),
        socket_(executor_),
        credit_wake_(executor_, asio::steady_timer::time_point::max()) {}

  void start(int port) {
    asio::co_spawn(
        executor_, [self = shared_from_this(), port] { return self->run(port); }, asio::detached);
  }

  void credit(std::size_t bytes) {
    in_flight_ -= std::min(bytes, in_flight_);
    credit_wake_.cancel();
  }

  void input(std::string bytes) {
    if (over_) {
      send(wire::ExecCredit{exec_, bytes.size()});
      return;
    }
    pending_.push_back(std::move(bytes));
    feed();
  }

  void end_of_input() {
    input_ended_ = true;
    feed();
  }

  void close() {
    over_ = true;
    error_code ignored;
    socket_.close(ignored);
    credit_wake_.cancel();
  }

  bool over() const { return over_; }

 private:
  void send(const wire::BulkMessage& message) {
    bulk_->send_text(wire::dump(wire::to_json(message)));
  }

  asio::awaitable<void> run(int port) {
    error_code failed;
    const std::array<asio::ip::address, 2> loopbacks{asio::ip::address_v4::loopback(),
                                                     asio::ip::address_v6::loopback()};
    for (const asio::ip::address& address : loopbacks) {
      error_code ignored;
      socket_.close(ignored);
      const tcp::endpoint endpoint(address, static_cast<std::uint16_t>(port));
      error_code why;
      co_await socket_.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, why));
      if (over_) co_return;
      if (!why) {
        failed = {};
        break;
      }
      if (!failed) failed = why;
    }
    if (failed) {
      Error error(ErrorCode::unreachable, "nothing answers at port " + std::to_string(port) +
                                              " of this node: " + failed.message());
      finish(error);
      co_return;
    }
    connected_ = true;
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    feed();
    std::string buffer(wire::kBulkFrame, '\0');
    while (!over_) {
      while (in_flight_ >= wire::kExecWindow && !over_) {
        co_await credit_wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
      const std::size_t got = co_await socket_.async_read_some(
          asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, failed));
      if (over_ || failed || got == 0) break;
      in_flight_ += got;
      send(wire::ExecOutput{exec_, false, got});
      bulk_->send({false, buffer.substr(0, got)});
    }
    if (over_) co_return;
    if (failed && failed != asio::error::eof) {
      Error error(ErrorCode::unreachable, "the connection broke: " + failed.message());
      finish(error);
    } else {
      finish(std::nullopt);
    }
  }

  void finish(std::optional<Error> error) {
    wire::ExecExit exit;
    exit.exec = exec_;
    if (!error) exit.exit_code = 0;
    exit.error = std::move(error);
    send(exit);
    close();
  }

  void feed() {
    if (feeding_ || !connected_ || over_) return;
    feeding_ = true;
    asio::co_spawn(
        executor_, [self = shared_from_this()] { return self->feed_in(); }, asio::detached);
  }

  asio::awaitable<void> feed_in() {
    error_code failed;
    while (!pending_.empty() && !over_) {
      const std::string bytes = std::move(pending_.front());
      pending_.pop_front();
      co_await asio::async_write(socket_, asio::buffer(bytes),
                                 asio::redirect_error(asio::use_awaitable, failed));
      if (!over_) send(wire::ExecCredit{exec_, bytes.size()});
    }
    feeding_ = false;
    if (input_ended_ && !over_) socket_.shutdown(tcp::socket::shutdown_send, failed);
  }

  asio::any_io_executor executor_;
  std::string exec_;
  wire::FrameStreamPtr bulk_;
  tcp::socket socket_;
  asio::steady_timer credit_wake_;
  std::deque<std::string> pending_;
  std::size_t in_flight_ = 0;
  bool connected_ = false;
  bool feeding_ = false;
  bool input_ended_ = false;
  bool over_ = false;
};

Forwards::Forwards(asio::any_io_executor executor) : executor_(std::move(executor)) {}

Forwards::~Forwards() {
  for (const auto& [exec, tunnel] : tunnels_) tunnel->close();
}

void Forwards::use(wire::FrameStreamPtr bulk) {
  bulk_ = std::move(bulk);
  for (const auto& [exec, tunnel] : tunnels_) tunnel->close();
  tunnels_.clear();
}

void Forwards::message(const wire::BulkMessage& message, std::string bytes) {
  const auto find = [&](const std::string& exec) -> std::shared_ptr<Tunnel> {
    const auto found = tunnels_.find(exec);
    return found == tunnels_.end() ? nullptr : found->second;
  };
  if (const auto* start = std::get_if<wire::StartForward>(&message)) {
    if (!bulk_) return;
    std::erase_if(tunnels_, [](const auto& entry) { return entry.second->over(); });
    const auto tunnel = std::make_shared<Tunnel>(executor_, start->exec, bulk_);
    tunnels_[start->exec] = tunnel;
    tunnel->start(start->port);
  } else if (const auto* input = std::get_if<wire::ExecInput>(&message)) {
    if (const auto tunnel = find(input->exec)) tunnel->input(std::move(bytes));
  } else if (const auto* credit = std::get_if<wire::ExecCredit>(&message)) {
    if (const auto tunnel = find(credit->exec)) tunnel->credit(credit->bytes);
  } else if (const auto* control = std::get_if<wire::ExecControl>(&message)) {
    const auto tunnel = find(control->exec);
    if (!tunnel) return;
    if (control->kind == "eof") tunnel->end_of_input();
    if (control->kind == "hangup") {
      tunnel->close();
      tunnels_.erase(control->exec);
    }
  }
}

}  // namespace dtrain::node

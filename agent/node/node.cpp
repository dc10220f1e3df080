#include "agent/node/node.hpp"

#include <signal.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/node/attempts.hpp"
#include "agent/node/config.hpp"
#include "agent/node/dial.hpp"
#include "agent/node/exec.hpp"
#include "agent/node/facts.hpp"
#include "agent/node/staging.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr auto kFirstRetry = 20ms;
constexpr auto kLastRetry = 5s;

class Agent {
 public:
  explicit Agent(const NodeOptions& options)
      : root_(options.root),
        config_(read_node_config(root_)),
        facts_(gather_facts()),
        attempts_(context_.get_executor(), root_, options.agent_binary,
                  [this](const wire::NodeMessage& message) { tell_head(message); }),
        staging_(context_.get_executor(), root_, config_,
                 [this](const wire::NodeMessage& message) { tell_head(message); }),
        execs_(
            context_.get_executor(), [this] { return login_environment(root_); },
            root_.root.string()),
        signals_(context_, SIGTERM, SIGINT, SIGCHLD),
        heartbeat_(context_) {}

  int run() {
    attempts_.recover();
    wait_for_signal();
    asio::co_spawn(
        context_, [this] { return stay_connected(); },
        [](const std::exception_ptr& failed) {
          if (failed) std::rethrow_exception(failed);
        });
    context_.run();
    log::info("the node agent ends");
    return 0;
  }

 private:
  void wait_for_signal() {
    signals_.async_wait([this](error_code failed, int signal) {
      if (failed) return;
      if (signal == SIGCHLD) {
        execs_.reap();
        reap_orphans(execs_.pids());
        wait_for_signal();
        return;
      }
      context_.stop();
    });
  }

  void tell_head(const wire::NodeMessage& message) {
    if (control_ && control_->is_open()) {
      control_->send_text(wire::dump(wire::to_json(message)));
    }
  }

  asio::awaitable<void> stay_connected() {
    std::chrono::milliseconds wait = kFirstRetry;
    std::string last_trouble;
    asio::steady_timer timer(context_);
    while (true) {
      bool was_in = false;
      std::string trouble;
      try {
        co_await serve(was_in);
      } catch (const std::exception& error) {
        trouble = error.what();
      }
      control_.reset();
      heartbeat_.cancel();
      // Said once, not at each try.
      if (was_in) {
        wait = kFirstRetry;
        log::warn("lost the head", {{"reason", trouble}});
        last_trouble.clear();
      } else if (trouble != last_trouble) {
        log::warn("cannot reach the head", {{"reason", trouble}});
        last_trouble = trouble;
      }
      timer.expires_after(wait);
      error_code ignored;
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      wait = std::min<std::chrono::milliseconds>(wait * 2, kLastRetry);
    }
  }

  asio::awaitable<wire::FrameStreamPtr> dial(std::string path) {
    wire::FrameStreamPtr stream = co_await dial_head(root_, config_, std::move(path));
    co_return stream;
  }

  // One connection's life: dial, greet, obey until it ends (an Error says how).
  asio::awaitable<void> serve(bool& was_in) {
    const wire::FrameStreamPtr control = co_await dial("/v1/node/control");
    control->send_text(wire::dump(wire::to_json(wire::NodeMessage(hello()))));
    const wire::HeadMessage answer = read_head_message(co_await control->read());
    if (const auto* refused = std::get_if<wire::Refused>(&answer)) throw refused->error;
    const auto* welcome = std::get_if<wire::Welcome>(&answer);
    if (welcome == nullptr) throw Error(ErrorCode::invalid, "the head did not say welcome");
    control_ = control;
    was_in = true;
    log::info("joined the head");
    asio::co_spawn(
        context_, [this, control] { return serve_bulk(control); }, asio::detached);
    asio::co_spawn(
        context_, [this, control, every = welcome->heartbeat] { return beat(control, every); },
        asio::detached);
    attempts_.head_joined();
    while (true) {
      const wire::Frame frame = co_await control->read();
      obey(read_head_message(frame));
    }
  }

  asio::awaitable<void> beat(wire::FrameStreamPtr control, std::chrono::milliseconds every) {
    while (control->is_open() && control == control_) {
      control->send_text(wire::dump(wire::to_json(wire::NodeMessage(wire::Heartbeat{}))));
      heartbeat_.expires_after(every);
      error_code ignored;
      co_await heartbeat_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  asio::awaitable<void> serve_bulk(wire::FrameStreamPtr control) {
    try {
      const wire::FrameStreamPtr bulk = co_await dial("/v1/node/bulk");
      const wire::BulkMessage hello_there = wire::BulkHello{config_.node};
      bulk->send_text(wire::dump(wire::to_json(hello_there)));
      execs_.use(bulk);
      while (true) {
        const wire::Frame frame = co_await bulk->read();
        const wire::BulkMessage message =
            wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a bulk message"));
        std::string bytes;
        if (std::holds_alternative<wire::ExecInput>(message)) {
          wire::Frame data = co_await bulk->read();
          bytes = std::move(data.bytes);
        }
        execs_.message(message, std::move(bytes));
      }
    } catch (const std::exception& error) {
      log::debug("the bulk connection ended", {{"reason", error.what()}});
    }
    // One without the other is of no use: both are dialled anew.
    if (control_ == control) execs_.use(nullptr);
    control->abort();
  }

  wire::Hello hello() const {
    wire::Hello hello;
    hello.cluster = config_.cluster;
    hello.node = config_.node;
    hello.agent_version = DTRAIN_VERSION;
    hello.address = config_.address;
    hello.boot_id = facts_.boot_id;
    hello.machine = facts_.machine;
    hello.root = root_.root.string();
    hello.log = root_.log().string();
    hello.cpus = facts_.cpus;
    hello.gpus = facts_.gpus;
    hello.memory = facts_.memory;
    hello.attempts = attempts_.unfinished();
    hello.features.emplace_back("content");
    hello.glibc = facts_.glibc;
    return hello;
  }

  static wire::HeadMessage read_head_message(const wire::Frame& frame) {
    return wire::head_message_from_json(wire::parse_json(frame.bytes, "the head's message"));
  }

  void obey(const wire::HeadMessage& message) {
    if (const auto* start = std::get_if<wire::StartAttempt>(&message)) {
      staging_.before_start(*start,
                            [this](const wire::StartAttempt& ready) { attempts_.start(ready); });
    } else if (const auto* command = std::get_if<wire::ToSupervisor>(&message)) {
      attempts_.command(*command);
    } else if (std::holds_alternative<wire::Heartbeat>(message)) {
      attempts_.renew_leases();
    } else if (const auto* stage = std::get_if<wire::Stage>(&message)) {
      staging_.stage(*stage);
    } else if (const auto* unstage = std::get_if<wire::Unstage>(&message)) {
      staging_.give_up(unstage->job, unstage->attempt);
    } else if (const auto* forget = std::get_if<wire::ForgetJob>(&message)) {
      staging_.forget(forget->job);
      attempts_.forget(forget->job);
    } else if (std::holds_alternative<wire::Shutdown>(message)) {
      context_.stop();
    }
  }

  asio::io_context context_{1};
  paths::NodeRoot root_;
  NodeConfig config_;
  Facts facts_;
  Attempts attempts_;
  Staging staging_;
  Execs execs_;
  asio::signal_set signals_;
  asio::steady_timer heartbeat_;
  wire::FrameStreamPtr control_;
};

}  // namespace

int node_main(const NodeOptions& options) {
  log::open("node", options.root.log().string());
  ::signal(SIGPIPE, SIG_IGN);
  // A second agent stands by until the first ends: so a new watch may start its children beside
  // those that a killed one left.
  auto lock = FileLock::try_lock(options.root.lock());
  if (!lock) {
    log::info("another agent holds this root; waiting for its end");
    lock = FileLock::wait(options.root.lock());
  }
  Agent agent(options);
  return agent.run();
}

}  // namespace dtrain::node

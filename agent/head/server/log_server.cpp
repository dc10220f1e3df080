#include "agent/head/server/log_server.hpp"

#include "agent/head/server/log_follower.hpp"

#include <sched.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <charconv>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using UnixSocket = asio::local::stream_protocol::socket;

namespace {

int number(const std::string& key, const std::string& value) {
  int result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size() || result < 0) {
    throw Error(ErrorCode::invalid, "\"" + key + "\" must be a whole number, not " + value);
  }
  return result;
}

}  // namespace

FollowQuery parse_follow_query(const std::string& query) {
  FollowQuery result;
  if (query.empty()) return result;
  for (const std::string& pair : split(query, '&')) {
    const std::size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
    const auto flag = [&] {
      if (value != "0" && value != "1") {
        throw Error(ErrorCode::invalid, "\"" + key + "\" must be 0 or 1, not " + value);
      }
      return value == "1";
    };
    if (key == "logs") {
      result.logs = flag();
    } else if (key == "events") {
      result.events = flag();
    } else if (key == "follow") {
      result.follow = flag();
    } else if (key == "setup") {
      result.setup = flag();
    } else if (key == "from") {
      result.from = flag();
    } else if (key == "rank") {
      result.rank = number(key, value);
    } else if (key == "attempt") {
      result.attempt = number(key, value);
    } else if (key == "tail") {
      result.tail = number(key, value);
    } else if (key == "stream" && (value == "out" || value == "err" || value == "setup")) {
      result.stream = value;
      result.setup = result.setup || value == "setup";
    } else {
      throw Error(ErrorCode::invalid, "no such part of a query: " + pair);
    }
  }
  return result;
}

LogServer::LogServer(asio::io_context& engine_context, Engine& engine)
    : engine_context_(engine_context), engine_(engine), thread_([this] {
        const sched_param none{};
        ::sched_setscheduler(0, SCHED_IDLE, &none);
        const auto work = asio::make_work_guard(context_);
        context_.run();
      }) {}

LogServer::~LogServer() {
  stop();
}

void LogServer::stop() {
  context_.stop();
  if (thread_.joinable()) thread_.join();
}

void LogServer::forget(const std::shared_ptr<Follower>& follower) {
  const auto [first, last] = followers_.equal_range(follower->job_);
  for (auto at = first; at != last; ++at) {
    if (at->second.lock() == follower) {
      followers_.erase(at);
      return;
    }
  }
}

void LogServer::news(const JobNews& news) {
  const auto [first, last] = followers_.equal_range(news.job);
  for (auto at = first; at != last;) {
    if (const auto follower = at->second.lock()) {
      follower->hear(news.frame);
      ++at;
    } else {
      at = followers_.erase(at);
    }
  }
}

UnixSocket LogServer::move_here(UnixSocket socket) {
  UnixSocket moved(context_);
  moved.assign(asio::local::stream_protocol(), socket.release());
  return moved;
}

void LogServer::follow(UnixSocket socket, std::string request, JobId job, FollowQuery query) {
  const auto follower = std::make_shared<Follower>(*this, std::move(job), std::move(query));
  // The coroutine begins later and on the other thread: what it is called with keeps it alive.
  asio::co_spawn(
      context_,
      [follower, moved = std::make_shared<UnixSocket>(move_here(std::move(socket))),
       text = std::move(request)] { return follower->run(std::move(*moved), text); },
      asio::detached);
}

}  // namespace dtrain::head

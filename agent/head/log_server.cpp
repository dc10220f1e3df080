#include "agent/head/log_server.hpp"

#include "agent/head/log_follower.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <deque>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using UnixSocket = asio::local::stream_protocol::socket;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;

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

std::uint64_t tail_offset(int fd, int lines) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return 0;
  auto end = static_cast<std::uint64_t>(status.st_size);
  if (lines == 0) return end;
  std::array<char, 65536> buffer;
  int seen = 0;
  bool first = true;  // a newline at the very end closes the last line
  while (end > 0) {
    const std::uint64_t begin = end > buffer.size() ? end - buffer.size() : 0;
    const ssize_t got = ::pread(fd, buffer.data(), end - begin, static_cast<off_t>(begin));
    if (got <= 0) return end;
    for (ssize_t i = got - 1; i >= 0; --i) {
      if (buffer[static_cast<std::size_t>(i)] == '\n' && !first && ++seen == lines) {
        return begin + static_cast<std::uint64_t>(i) + 1;
      }
      first = false;
    }
    end = begin;
  }
  return 0;
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
      asio::post(context_, [follower, frame = news.frame] { follower->hear(frame); });
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

namespace {

asio::awaitable<void> write_file(UnixSocket socket, fs::path path, std::uint64_t from,
                                 bool is_range) {
  error_code failed;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) co_return;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  from = std::min(from, size);
  std::string head =
      is_range
          ? "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(from) + "-" +
                std::to_string(size == 0 ? 0 : size - 1) + "/" + std::to_string(size) + "\r\n"
          : "HTTP/1.1 200 OK\r\n";
  head += "Content-Type: application/octet-stream\r\nConnection: close\r\nContent-Length: " +
          std::to_string(size - from) + "\r\n\r\n";
  co_await asio::async_write(socket, asio::buffer(head),
                             asio::redirect_error(asio::use_awaitable, failed));
  std::string buffer(kChunk, '\0');
  while (!failed && from < size) {
    const ssize_t got =
        ::pread(fd.get(), buffer.data(), std::min<std::uint64_t>(buffer.size(), size - from),
                static_cast<off_t>(from));
    if (got <= 0) co_return;  // it shrank: the client sees too few bytes
    from += static_cast<std::uint64_t>(got);
    co_await asio::async_write(socket, asio::buffer(buffer.data(), static_cast<std::size_t>(got)),
                               asio::redirect_error(asio::use_awaitable, failed));
  }
}

}  // namespace

void LogServer::send_file(UnixSocket socket, fs::path path, std::uint64_t from, bool is_range) {
  asio::co_spawn(context_,
                 write_file(move_here(std::move(socket)), std::move(path), from, is_range),
                 asio::detached);
}

}  // namespace dtrain::head

#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <set>

#include "agent/head/log_server.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

// One follower of a job: LogServer's inside, for log_server.cpp only.
namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using UnixSocket = asio::local::stream_protocol::socket;
using nlohmann::json;

inline constexpr std::size_t kFollowerChunk = std::size_t{256} << 10;
inline constexpr std::size_t kFollowerQueue = std::size_t{1} << 20;
inline constexpr std::chrono::milliseconds kFollowerPoll{15};   // while ranks write
inline constexpr std::chrono::milliseconds kFollowerWait{250};  // while nothing runs

inline constexpr int kNoRank = -1;

// One stream of one rank of one attempt, or what its setup wrote on a node, as far as it has been
// sent.
struct FollowerTail {
  int attempt;
  int rank;  // kNoRank: the setup's
  NodeId node;
  bool error_stream;
  fs::path path;
  UniqueFd fd;
  std::uint64_t offset = 0;
};

// What the engine knows, taken in one go on its thread.
struct FollowerSnapshot {
  json summary;
  int newest_attempt = 0;
  bool may_write = true;
  std::vector<Engine::LogSource> sources;
  std::vector<FollowerTail> setups;  // nothing of them is sent yet
};

class LogServer::Follower : public std::enable_shared_from_this<LogServer::Follower> {
 public:
  Follower(LogServer& server, JobId job, FollowQuery query)
      : server_(server), job_(std::move(job)), query_(std::move(query)), wake_(server.context_) {}

  // Log thread.
  void hear(json frame) {
    news_.push_back(std::move(frame));
    wake_.cancel();
  }

  asio::awaitable<void> run(UnixSocket socket, std::string request) {
    const auto self = shared_from_this();
    try {
      stream_ = co_await wire::accept_unix(std::move(socket), std::move(request));
    } catch (const Error& error) {
      log::debug("no follower after all", {{"reason", error.what()}});
      co_return;
    }
    asio::co_spawn(
        server_.context_, [self] { return self->watch_peer(); }, asio::detached);
    try {
      co_await follow();
    } catch (const Error& error) {
      stream_->send_text(wire::dump(wire::error_to_json(error)));
    } catch (const std::exception& error) {
      log::error("a follower failed", {{"error", error.what()}});
    }
    stream_->close();
    asio::post(server_.engine_context_, [self] { self->server_.forget(self); });
  }

 private:
  // The client says nothing; its end is noticed by reading.
  asio::awaitable<void> watch_peer() {
    const auto self = shared_from_this();
    try {
      while (true) co_await stream_->read();
    } catch (const Error&) {
      gone_ = true;
      wake_.cancel();
    }
  }

  // Has the engine's thread make a snapshot, and waits for it. What goes wrong there is thrown
  // here.
  asio::awaitable<void> ask() {
    answered_ = false;
    asio::post(server_.engine_context_, [self = shared_from_this()] {
      auto answer = std::make_shared<FollowerSnapshot>();
      std::exception_ptr failed;
      try {
        *answer = snapshot(self);
      } catch (...) {
        failed = std::current_exception();
      }
      asio::post(self->server_.context_, [self, answer, failed] {
        self->now_ = std::move(*answer);
        self->stale_ = false;
        self->ask_failed_ = failed;
        self->answered_ = true;
        self->wake_.cancel();
      });
    });
    while (!answered_) {
      wake_.expires_at(asio::steady_timer::time_point::max());
      error_code ignored;
      co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    if (ask_failed_) std::rethrow_exception(ask_failed_);
  }

  // Engine's thread.
  static FollowerSnapshot snapshot(const std::shared_ptr<Follower>& self) {
    Engine& engine = self->server_.engine_;
    FollowerSnapshot now;
    now.summary = engine.job(self->job_);
    now.newest_attempt = engine.newest_attempt(self->job_);
    now.may_write = engine.may_write(self->job_);
    if (!self->listening_) {
      // From this instant on nothing is missed: what was before is in the snapshot.
      self->listening_ = true;
      self->server_.followers_.emplace(self->job_, self);
      self->first_attempt_ = self->query_.attempt.value_or(self->query_.follow && now.may_write
                                                               ? std::max(1, now.newest_attempt)
                                                               : now.newest_attempt);
      // It may have run in the first attempt alone.
      if (self->query_.stream == "setup" && !self->query_.attempt) self->first_attempt_ = 1;
      if (self->query_.events && self->query_.follow) {
        const json events = engine.job_events(self->job_);
        self->past_events_ = events.value("events", json::array());
      }
    }
    const int last = self->query_.attempt.value_or(now.newest_attempt);
    for (int attempt = self->first_attempt_; attempt >= 1 && attempt <= last; ++attempt) {
      for (Engine::LogSource& source : engine.logs(self->job_, attempt)) {
        now.sources.push_back(std::move(source));
      }
      if (self->query_.setup) add_setups(engine, self->job_, attempt, now.setups);
    }
    return now;
  }

  static void add_setups(const Engine& engine, const JobId& job, int attempt,
                         std::vector<FollowerTail>& tails) {
    for (auto& [name, path] : engine.other_logs(job, attempt)) {
      if (path.filename() != "setup.log") continue;
      tails.push_back(
          {attempt, kNoRank, NodeId(name.substr(0, name.rfind('/'))), false, std::move(path), {}});
    }
  }

  void send(const json& frame) { stream_->send_text(wire::dump(frame)); }

  void send_state() {
    const FollowerSnapshot& now = now_;
    send({{"type", "state"},
          {"job", job_.str()},
          {"state", now.summary.value("state", "")},
          {"reason", now.summary.value("reason", "")},
          {"attempt", now.newest_attempt},
          {"time", rfc3339(std::chrono::system_clock::now())}});
  }

  // Frames are put together outside of coroutines: g++ 12 miscompiles some initializer lists there.
  void send_header(const FollowerTail& tail, std::size_t bytes) {
    json header = {{"type", "log"},
                   {"attempt", tail.attempt},
                   {"rank", tail.rank},
                   {"node", tail.node.str()},
                   {"stream", tail.error_stream ? "err" : "out"},
                   {"offset", tail.offset},
                   {"bytes", bytes}};
    if (tail.rank == kNoRank) {
      header["rank"] = nullptr;
      header["stream"] = "setup";
    }
    send(header);
  }

  void send_end() {
    json end = {{"type", "end"}, {"state", now_.summary.value("state", "")}};
    end["exit_code"] = now_.summary.contains("exit_code") ? now_.summary["exit_code"] : json();
    send(end);
  }

  void send_event(json event) {
    const auto number = event.value("event", std::int64_t{0});
    if (!query_.events || !events_sent_.insert(number).second) return;
    event["type"] = "event";
    send(event);
  }

  // Where the output of ranks stops whose node was lost: what it wrote last is not here.
  void send_cuts() {
    for (const Engine::LogSource& source : now_.sources) {
      if (!source.lost || !source.copied) continue;
      for (const FollowerTail& tail : tails_) {
        if (tail.attempt != source.attempt || tail.rank != source.rank) continue;
        json cut = {{"type", "cut"}, {"attempt", tail.attempt}, {"rank", tail.rank}};
        cut["node"] = tail.node.str();
        cut["stream"] = tail.error_stream ? "err" : "out";
        cut["offset"] = tail.offset;
        send(cut);
      }
    }
  }

  void send_news() {
    while (!news_.empty()) {
      const json frame = std::move(news_.front());
      news_.pop_front();
      const std::string type = frame.value("type", "");
      if (type == "event") {
        send_event(frame);
      } else if (type != "end" && (query_.events || type == "state")) {
        stale_ = stale_ || type == "state";
        send(frame);  // the end is said by follow(), behind the last byte
      }
    }
  }

  void open_setups(std::vector<FollowerTail>& setups) {
    for (FollowerTail& tail : setups) {
      if (known_setups_.insert({tail.attempt, tail.node}).second) tails_.push_back(std::move(tail));
    }
    setups.clear();
  }

  void open_tails(const std::vector<Engine::LogSource>& sources) {
    if (query_.stream == "setup") return;
    for (const Engine::LogSource& source : sources) {
      if (query_.rank && *query_.rank != source.rank) continue;
      for (const bool error_stream : {false, true}) {
        if (query_.stream && (*query_.stream == "err") != error_stream) continue;
        if (!known_.insert({source.attempt, source.rank, error_stream}).second) continue;
        FollowerTail tail{source.attempt,
                          source.rank,
                          source.node,
                          error_stream,
                          error_stream ? source.err() : source.out(),
                          {},
                          0};
        tails_.push_back(std::move(tail));
      }
    }
  }

  bool open(FollowerTail& tail) {
    if (tail.fd) return true;
    tail.fd.reset(::open(tail.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!tail.fd) return false;
    // Only what was there at the beginning is cut; a later attempt is shown whole.
    if (query_.tail && first_pass_) tail.offset = tail_offset(tail.fd.get(), *query_.tail);
    return true;
  }

  // Sends what there is of each stream, a chunk of each at a time; false when there was nothing.
  asio::awaitable<bool> send_logs() {
    bool some = false;
    std::string buffer;
    for (FollowerTail& tail : tails_) {
      if (gone_) co_return some;
      if (!open(tail)) continue;
      buffer.resize(kFollowerChunk);
      const ssize_t got =
          ::pread(tail.fd.get(), buffer.data(), buffer.size(), static_cast<off_t>(tail.offset));
      if (got <= 0) continue;
      some = true;
      buffer.resize(static_cast<std::size_t>(got));
      send_header(tail, buffer.size());
      tail.offset += static_cast<std::uint64_t>(got);
      stream_->send({false, std::move(buffer)});
      buffer.clear();
      co_await stream_->queue_below(kFollowerQueue);
    }
    co_return some;
  }

  asio::awaitable<void> follow() {
    co_await ask();
    send_state();
    for (const json& event : past_events_) send_event(event);
    bool over = false;  // nothing will be written any more
    while (!gone_) {
      send_news();
      if (query_.logs) {
        open_setups(now_.setups);
        open_tails(now_.sources);
        const bool some = co_await send_logs();
        if (some) continue;
      }
      first_pass_ = false;
      if (over || !query_.follow) break;
      if (news_.empty() && !stale_) {
        const bool writing = now_.summary.value("state", "") == "running" && query_.logs;
        wake_.expires_after(writing ? asio::steady_timer::duration(kFollowerPoll)
                                    : asio::steady_timer::duration(kFollowerWait));
        error_code ignored;
        co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        if (news_.empty() && writing && !stale_) continue;
      }
      co_await ask();
      // What was written before the engine said so is on disk: one more pass reads all of it.
      over = !now_.may_write || (query_.attempt && *query_.attempt < now_.newest_attempt);
    }
    if (gone_) co_return;
    send_news();
    if (query_.follow) co_await ask();
    send_cuts();
    send_end();
  }

  friend class LogServer;
  LogServer& server_;
  JobId job_;
  FollowQuery query_;
  wire::FrameStreamPtr stream_;
  asio::steady_timer wake_;
  std::deque<json> news_;
  FollowerSnapshot now_;  // the newest one
  std::exception_ptr ask_failed_;
  bool answered_ = false;
  bool stale_ = false;  // a state was heard that now_ does not know yet
  json past_events_ = json::array();
  std::set<std::int64_t> events_sent_;
  std::vector<FollowerTail> tails_;
  std::set<std::tuple<int, int, bool>> known_;
  std::set<std::pair<int, NodeId>> known_setups_;
  int first_attempt_ = 1;
  bool listening_ = false;  // engine's thread
  bool first_pass_ = true;
  bool gone_ = false;
};

}  // namespace dtrain::head

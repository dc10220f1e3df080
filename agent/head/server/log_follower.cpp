#include "agent/head/server/log_follower.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <climits>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using UnixSocket = asio::local::stream_protocol::socket;
using nlohmann::json;

namespace {

constexpr std::size_t kFollowerChunk = std::size_t{256} << 10;
constexpr std::size_t kFollowerQueue = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kFollowerPoll{15};        // while ranks write
constexpr std::chrono::microseconds kFollowerPollStream{50};  // and so much longer for each stream
constexpr std::chrono::milliseconds kFollowerWait{250};       // while nothing runs

// "attempt 1", "attempts 1 to 3".
std::string numbers(const std::string& what, int first, int last) {
  if (first == last) return what + " " + std::to_string(first);
  return what + "s " + std::to_string(first) + " to " + std::to_string(last);
}

void add_setups(const Engine& engine, const JobId& job, int attempt,
                std::vector<FollowerTail>& tails) {
  for (auto& [name, path] : engine.other_logs(job, attempt)) {
    if (path.filename() != "setup.log") continue;
    const NodeId node(name.substr(0, name.rfind('/')));
    tails.push_back({attempt, kNoRank, node, false, std::move(path), {}});
  }
}

}  // namespace

LogServer::Follower::Follower(LogServer& server, JobId job, FollowQuery query)
    : server_(server), job_(std::move(job)), query_(std::move(query)), wake_(server.context_) {}

void LogServer::Follower::hear(json frame) {
  if (!news_.add(std::move(frame))) return;
  asio::post(server_.context_, [self = shared_from_this()] { self->wake_.cancel(); });
}

asio::awaitable<void> LogServer::Follower::run(UnixSocket socket, std::string request) {
  const auto self = shared_from_this();
  try {
    stream_ = co_await wire::accept_unix(std::move(socket), std::move(request));
    if (query_.from) {
      const wire::Frame start = co_await stream_->read();
      read_start(start.bytes);
    }
  } catch (const Error& error) {
    log::debug("no follower after all", {{"reason", error.what()}});
    if (stream_) stream_->send_text(wire::dump(wire::error_to_json(error)));
    if (stream_) stream_->close();
    co_return;
  }
  asio::co_spawn(
      server_.context_, [self] { return self->watch_peer(); }, asio::detached);
  try {
    co_await follow();
  } catch (const Error& error) {
    send(wire::error_to_json(error));
  } catch (const std::exception& error) {
    log::error("a follower failed", {{"error", error.what()}});
    send(wire::error_to_json(Error(ErrorCode::internal, error.what())));
  }
  stream_->close();
  tails_.clear();  // here, since open files belong to this thread
  asio::post(server_.engine_context_, [self] { self->server_.forget(self); });
}

// {"type": "from", "attempt": N, "event": N, "logs": [[attempt, rank, bytes of stdout, of
// stderr]…]}
void LogServer::Follower::read_start(const std::string& frame) {
  const json start = wire::parse_json(frame, "where to begin");
  last_event_ = wire::get_int(start, "event", 0, INT64_MAX, 0);
  start_attempt_ = static_cast<int>(wire::get_int(start, "attempt", 0, INT_MAX, 0));
  const json& logs = wire::member(start, "logs");
  for (const json& row : logs) {
    const bool good = row.is_array() && row.size() == 4 &&
                      std::all_of(row.begin(), row.end(),
                                  [](const json& number) { return number.is_number_unsigned(); });
    if (!good) throw Error(ErrorCode::invalid, "\"logs\" must be rows of four numbers");
    for (const bool error_stream : {false, true}) {
      start_[{row[0].get<int>(), row[1].get<int>(), error_stream}] =
          row[error_stream ? 3 : 2].get<std::uint64_t>();
    }
  }
}

// After its start the client says nothing; its end is noticed by reading.
asio::awaitable<void> LogServer::Follower::watch_peer() {
  const auto self = shared_from_this();
  try {
    while (true) co_await stream_->read();
  } catch (const Error&) {
    gone_ = true;
    wake_.cancel();
  }
}

// Has the engine's thread make a snapshot, and waits for it. What goes wrong there is thrown here.
asio::awaitable<void> LogServer::Follower::ask(bool events) {
  answered_ = false;
  asio::post(server_.engine_context_, [self = shared_from_this(), events] {
    auto answer = std::make_shared<FollowerSnapshot>();
    const auto tell = [self, answer](std::exception_ptr failed) {
      asio::post(self->server_.context_, [self, answer, failed] {
        self->now_ = std::move(*answer);
        self->stale_ = false;
        self->look_back_ = true;
        self->ask_failed_ = failed;
        self->answered_ = true;
        self->wake_.cancel();
      });
    };
    try {
      *answer = snapshot(self);
      if (!events) return tell(nullptr);
      self->server_.engine_.job_events(self->job_, [answer, tell](json read) {
        if (!read.contains("events")) {
          return tell(std::make_exception_ptr(wire::error_from_json(read)));
        }
        answer->events = std::move(read["events"]);
        tell(nullptr);
      });
    } catch (...) {
      tell(std::current_exception());
    }
  });
  while (!answered_) {
    wake_.expires_at(asio::steady_timer::time_point::max());
    error_code ignored;
    co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (ask_failed_) std::rethrow_exception(ask_failed_);
}

// Engine's thread. The log thread waits for the answer, so that what it owns may be read here.
FollowerSnapshot LogServer::Follower::snapshot(const std::shared_ptr<Follower>& self) {
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
    // One that comes back begins where it was.
    if (!self->query_.attempt && self->start_attempt_ > 0) {
      self->first_attempt_ = std::min(self->first_attempt_, self->start_attempt_);
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

// Throws Error(not_found) for a rank or an attempt that there is not, as soon as that is known.
void LogServer::Follower::check_choice(bool over) {
  if (choice_checked_) return;
  const int newest = now_.newest_attempt;
  const bool may_come = query_.follow && !over;
  const std::string job = "job " + job_.str();
  if (query_.attempt && *query_.attempt > newest && !(may_come && *query_.attempt == newest + 1)) {
    throw Error(ErrorCode::not_found, job + " has no attempt " + std::to_string(*query_.attempt))
        .with_hint(newest == 0 ? "it has not begun yet"
                               : "it has " + numbers("attempt", 1, newest));
  }
  if (now_.sources.empty()) {
    if (query_.rank && !may_come) {
      throw Error(ErrorCode::not_found, job + " has no rank " + std::to_string(*query_.rank))
          .with_hint("it has not begun yet");
    }
    return;
  }
  choice_checked_ = true;
  if (!query_.rank) return;
  int last = 0;
  for (const Engine::LogSource& source : now_.sources) {
    if (source.rank == *query_.rank) return;
    last = std::max(last, source.rank);
  }
  throw Error(ErrorCode::not_found, job + " has no rank " + std::to_string(*query_.rank))
      .with_hint("it has " + numbers("rank", 0, last));
}

void LogServer::Follower::send(const json& frame) {
  stream_->send_text(wire::dump(frame));
}

// Frames are put together outside of coroutines: g++ 12 miscompiles some initializer lists there.
void LogServer::Follower::send_state() {
  send({{"type", "state"},
        {"job", job_.str()},
        {"state", now_.summary.value("state", "")},
        {"reason", now_.summary.value("reason", "")},
        {"attempt", now_.newest_attempt},
        {"time", rfc3339(std::chrono::system_clock::now())}});
}

void LogServer::Follower::send_piece(FollowerTail& tail, std::string bytes) {
  json header = {{"type", "log"},
                 {"attempt", tail.attempt},
                 {"rank", tail.rank},
                 {"node", tail.node.str()},
                 {"stream", tail.error_stream ? "err" : "out"},
                 {"offset", tail.offset},
                 {"bytes", bytes.size()}};
  if (tail.rank == kNoRank) {
    header["rank"] = nullptr;
    header["stream"] = "setup";
  }
  send(header);
  tail.offset += bytes.size();
  stream_->send({false, std::move(bytes)});
}

void LogServer::Follower::send_end() {
  json end = {{"type", "end"}, {"state", now_.summary.value("state", "")}};
  end["exit_code"] = now_.summary.contains("exit_code") ? now_.summary["exit_code"] : json();
  send(end);
}

void LogServer::Follower::send_event(json event) {
  const auto number = event.value("event", std::int64_t{0});
  if (!query_.events || number <= last_event_) return;
  last_event_ = number;
  event["type"] = "event";
  send(event);
}

void LogServer::Follower::send_events() {
  for (const json& event : now_.events) send_event(event);
  now_.events.clear();
}

// Where the output of ranks stops whose node was lost: what it wrote last is not here.
void LogServer::Follower::send_cuts() {
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

// While the reader takes nothing, the queue keeps the newest of each kind.
asio::awaitable<void> LogServer::Follower::send_news() {
  while (!gone_) {
    co_await stream_->queue_below(kFollowerQueue);
    std::optional<json> frame = news_.take();
    if (news_.take_missed_events() && query_.events) {
      co_await ask(true);
      send_events();
    }
    if (!frame) co_return;
    const std::string type = frame->value("type", "");
    if (type == "event") {
      send_event(std::move(*frame));
    } else if (type != "end" && (query_.events || type == "state")) {
      stale_ = stale_ || type == "state";
      send(*frame);  // the end is said by follow(), behind the last byte
    }
  }
}

void LogServer::Follower::open_setups() {
  for (FollowerTail& tail : now_.setups) {
    if (known_setups_.insert({tail.attempt, tail.node}).second) tails_.push_back(std::move(tail));
  }
  now_.setups.clear();
}

void LogServer::Follower::open_tails() {
  if (query_.stream == "setup") return;
  for (const Engine::LogSource& source : now_.sources) {
    if (query_.rank && *query_.rank != source.rank) continue;
    for (const bool error_stream : {false, true}) {
      if (query_.stream && (*query_.stream == "err") != error_stream) continue;
      const Stream stream{source.attempt, source.rank, error_stream};
      if (!known_.insert(stream).second) continue;
      FollowerTail tail{source.attempt, source.rank, source.node, error_stream, {}, {}};
      tail.path = error_stream ? source.err() : source.out();
      if (const auto start = start_.find(stream); start != start_.end()) {
        tail.offset = start->second;
        tail.begun = true;
      }
      tails_.push_back(std::move(tail));
    }
  }
}

// The next bytes of the stream; empty when there are none now.
std::string LogServer::Follower::read(FollowerTail& tail) {
  const LogFiles::FilePtr file = tail.file ? tail.file : server_.files_.open(tail.path);
  if (!file) return {};
  const bool keep = server_.files_.room() && !is_old(tail);
  tail.file = keep ? file : nullptr;
  if (!std::exchange(tail.begun, true) && query_.tail && first_pass_) {
    // Only what was there at the beginning is cut; a later attempt is shown whole. The client is
    // told where it is even if nothing follows.
    tail.offset = tail_offset(file->fd(), *query_.tail);
    if (tail.offset > 0) send_piece(tail, {});
  }
  return read_log(*file, tail.path, tail.offset, kFollowerChunk);
}

// Sends what there is of each stream, a chunk of each at a time; false when there was nothing.
asio::awaitable<bool> LogServer::Follower::send_logs() {
  bool some = false;
  for (FollowerTail& tail : tails_) {
    if (gone_) co_return some;
    if (is_old(tail) && !look_back_) continue;
    std::string bytes = read(tail);
    if (bytes.empty()) continue;
    some = true;
    send_piece(tail, std::move(bytes));
    co_await stream_->queue_below(kFollowerQueue);
  }
  co_return some;
}

// Until something is heard, or files are to be looked at again.
asio::awaitable<void> LogServer::Follower::pause() {
  asio::steady_timer::duration wait = kFollowerWait;
  if (ranks_write()) wait = kFollowerPoll + kFollowerPollStream * static_cast<int>(tails_.size());
  wake_.expires_after(wait);
  error_code ignored;
  co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> LogServer::Follower::follow() {
  co_await ask(query_.events && query_.follow);
  send_state();
  send_events();
  const auto earlier = [&] { return query_.attempt && *query_.attempt < now_.newest_attempt; };
  bool over = !query_.follow || earlier();  // nothing will be written any more, or is wanted
  while (!gone_) {
    check_choice(over);
    co_await send_news();
    if (query_.logs) {
      open_setups();
      open_tails();
      const bool some = co_await send_logs();
      if (some) continue;
      look_back_ = false;
    }
    first_pass_ = false;
    if (over) break;
    if (!stale_) {
      if (news_.empty()) co_await pause();
      if (ranks_write()) continue;
    }
    co_await ask(false);
    // What was written before the engine said so is on disk: one more pass reads all of it.
    over = !now_.may_write || earlier();
  }
  if (gone_) co_return;
  co_await send_news();
  if (query_.follow) co_await ask(false);
  send_cuts();
  send_end();
}

}  // namespace dtrain::head

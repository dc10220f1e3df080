#include "agent/head/server/log_server.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <climits>
#include <set>
#include <tuple>

#include "agent/head/server/news_queue.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
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
constexpr std::chrono::seconds kFollowerAsk{5};  // the engine, where all changes are told anyway
constexpr int kNoRank = -1;

// One stream of one rank of one attempt, or what its setup wrote on a node, as far as it has been
// sent.
struct FollowerTail {
  int attempt;
  int rank;  // kNoRank: the setup's
  NodeId node;
  bool error_stream;
  fs::path path;
  LogFiles::FilePtr file;  // while it is kept open
  bool begun = false;      // the file was there
  std::uint64_t offset = 0;
};

}  // namespace

// One follower of a job. Lives on the log thread while its connection does. What it holds for a
// reader that stands still is bounded: some frames on the connection, and a NewsQueue.
class LogServer::Follower : public std::enable_shared_from_this<LogServer::Follower> {
 public:
  Follower(LogServer& server, JobId job, FollowQuery query);

  // Any thread.
  void hear(json frame);
  asio::awaitable<void> run(UnixSocket socket, std::string request);

 private:
  asio::awaitable<void> watch_peer();
  asio::awaitable<void> ask(bool events);
  static FollowSnapshot snapshot(const std::shared_ptr<Follower>& self);
  asio::awaitable<void> follow();
  asio::awaitable<void> send_news();
  asio::awaitable<bool> send_logs();
  asio::awaitable<void> pause();

  void read_start(const std::string& frame);
  void send(const json& frame);
  void send_state();
  void send_piece(FollowerTail& tail, KeptBytes piece);
  void send_end();
  void send_events();
  void send_event(json event);
  void send_cuts();
  void open_tails();
  void open_setups();
  KeptBytes read(FollowerTail& tail);
  bool is_old(const FollowerTail& tail) const { return tail.attempt < now_.newest_attempt; }
  // Whether the newest snapshot holds, as no news of the job's state were heard. The engine is not
  // to be asked by thousands of followers of jobs that wait.
  bool holds() const {
    const bool is_told = !query_.logs || !changes_unsaid(now_);
    return ranks_write() || (is_told && std::chrono::steady_clock::now() < asked_ + kFollowerAsk);
  }
  bool ranks_write() const { return query_.logs && now_.job.value("state", "") == "running"; }
  std::chrono::microseconds look_again_after() const {
    if (!ranks_write()) return kFollowerWait;
    return kFollowerPoll + kFollowerPollStream * static_cast<int>(tails_.size());
  }

  friend class LogServer;
  LogServer& server_;
  JobId job_;
  FollowQuery query_;
  wire::FrameStreamPtr stream_;
  asio::steady_timer wake_;
  NewsQueue news_;
  FollowSnapshot now_;  // the newest one
  std::exception_ptr ask_failed_;
  bool answered_ = false;
  bool stale_ = false;           // a state was heard that now_ does not know yet
  std::int64_t last_event_ = 0;  // that was sent
  std::vector<FollowerTail> tails_;
  using Stream = std::tuple<int, int, bool>;  // attempt, rank, stderr
  std::set<Stream> known_;                    // those in tails_
  std::set<std::pair<int, NodeId>> known_setups_;
  std::map<Stream, std::uint64_t> start_;  // where the client wants them to begin
  int start_attempt_ = 0;                  // and from which attempt on; 0: it did not say
  int first_attempt_ = 1;
  bool listening_ = false;  // engine's thread
  bool choice_checked_ = false;
  bool first_pass_ = true;
  std::chrono::steady_clock::time_point next_look_;  // at the files
  std::chrono::steady_clock::time_point asked_;      // the engine, the last time
  bool look_back_ = true;  // at attempts before the newest, whose last bytes may still come
  bool gone_ = false;
};

LogServer::Follower::Follower(LogServer& server, JobId job, FollowQuery query)
    : server_(server),
      job_(std::move(job)),
      query_(std::move(query)),
      wake_(server.idle_.context()) {}

void LogServer::Follower::hear(json frame) {
  if (!news_.add(std::move(frame))) return;
  asio::post(server_.idle_.context(), [self = shared_from_this()] { self->wake_.cancel(); });
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
      server_.idle_.context(), [self] { return self->watch_peer(); }, asio::detached);
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
    auto answer = std::make_shared<FollowSnapshot>();
    // The engine may keep this for longer than the log thread's context is there, which a follower
    // must not outlive.
    const auto tell = [server = &self->server_, asked = self->weak_from_this(),
                       answer](std::exception_ptr failed) {
      asio::post(server->idle_.context(), [asked, answer, failed] {
        const auto follower = asked.lock();
        if (!follower) return;
        follower->now_ = std::move(*answer);
        follower->stale_ = false;
        follower->look_back_ = true;
        follower->ask_failed_ = failed;
        follower->answered_ = true;
        follower->wake_.cancel();
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
  asked_ = std::chrono::steady_clock::now();
  if (ask_failed_) std::rethrow_exception(ask_failed_);
}

// Engine's thread. The log thread waits for the answer, so that what it owns may be read here.
FollowSnapshot LogServer::Follower::snapshot(const std::shared_ptr<Follower>& self) {
  const Engine& engine = self->server_.engine_;
  if (!self->listening_) {
    // From this instant on nothing is missed: what was before is in the snapshot.
    self->first_attempt_ = first_attempt_of(self->query_, engine.newest_attempt(self->job_),
                                            engine.may_write(self->job_), self->start_attempt_);
    self->listening_ = true;
    self->server_.followers_.emplace(self->job_, self);
  }
  return follow_snapshot(engine, self->job_, self->query_, self->first_attempt_);
}

void LogServer::Follower::send(const json& frame) {
  stream_->send_text(wire::dump(frame));
}

// Frames are put together outside of coroutines: g++ 12 miscompiles some initializer lists there.
void LogServer::Follower::send_state() {
  send({{"type", "state"},
        {"job", job_.str()},
        {"state", now_.job.value("state", "")},
        {"reason", now_.job.value("reason", "")},
        {"attempt", now_.newest_attempt},
        {"time", rfc3339(std::chrono::system_clock::now())}});
}

void LogServer::Follower::send_piece(FollowerTail& tail, KeptBytes piece) {
  const std::uint64_t released = piece.offset - tail.offset;
  // An older client counts what is missing between two pieces.
  if (released > 0 && tail.offset == 0) send_piece(tail, {});
  tail.offset = piece.offset;
  json header = {{"type", "log"},
                 {"attempt", tail.attempt},
                 {"rank", tail.rank},
                 {"node", tail.node.str()},
                 {"stream", tail.error_stream ? "err" : "out"},
                 {"offset", tail.offset},
                 {"bytes", piece.bytes.size()}};
  if (released > 0) header["released"] = released;
  if (tail.rank == kNoRank) {
    header["rank"] = nullptr;
    header["stream"] = "setup";
  }
  send(header);
  tail.offset += piece.bytes.size();
  stream_->send({false, std::move(piece.bytes)});
}

void LogServer::Follower::send_end() {
  json end = {{"type", "end"}, {"state", now_.job.value("state", "")}};
  end["exit_code"] = now_.job.contains("exit_code") ? now_.job["exit_code"] : json();
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
  for (FollowSnapshot::SetupLog& log : now_.setups) {
    if (!known_setups_.insert({log.attempt, log.node}).second) continue;
    tails_.push_back({log.attempt, kNoRank, log.node, false, std::move(log.path), {}});
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
KeptBytes LogServer::Follower::read(FollowerTail& tail) {
  const LogFiles::FilePtr file = tail.file ? tail.file : server_.files_.open(tail.path);
  if (!file) return {};
  const bool keep = server_.files_.room() && !is_old(tail);
  tail.file = keep ? file : nullptr;
  if (!std::exchange(tail.begun, true) && query_.tail && first_pass_) {
    // Only what was there at the beginning is cut; a later attempt is shown whole. The client is
    // told where it is even if nothing follows.
    const std::uint64_t released = released_of(tail.path);
    const std::uint64_t begin = tail_offset(file->fd(), *query_.tail, released);
    // Lines that were released are missing only to who asks for more than there are.
    if (begin > released) tail.offset = begin;
    if (begin > 0) send_piece(tail, {begin, {}});
  }
  return read_kept(file->fd(), tail.path, tail.offset, kFollowerChunk);
}

// Sends what there is of each stream, a chunk of each at a time; false when there was nothing.
asio::awaitable<bool> LogServer::Follower::send_logs() {
  bool some = false;
  for (FollowerTail& tail : tails_) {
    if (gone_) co_return some;
    if (is_old(tail) && !look_back_) continue;
    KeptBytes piece = read(tail);
    if (piece.bytes.empty()) continue;
    some = true;
    send_piece(tail, std::move(piece));
    co_await stream_->queue_below(kFollowerQueue);
  }
  co_return some;
}

// Until something is heard, or files are to be looked at again.
asio::awaitable<void> LogServer::Follower::pause() {
  wake_.expires_at(next_look_);
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
    choice_checked_ = choice_checked_ || check_choice(query_, now_, job_, over);
    co_await send_news();
    // News come for each report of each rank; that is no reason to look at all files again.
    if (std::chrono::steady_clock::now() >= next_look_) {
      if (query_.logs) {
        open_setups();
        open_tails();
        const bool some = co_await send_logs();
        if (some) continue;
        look_back_ = false;
      }
      first_pass_ = false;
      if (over) break;
      next_look_ = std::chrono::steady_clock::now() + look_again_after();
    }
    if (!stale_) {
      if (news_.empty()) co_await pause();
      if (holds()) continue;
    }
    co_await ask(false);
    // What was written before the engine said so is on disk: one more pass reads all of it.
    over = !now_.may_write || earlier();
    next_look_ = {};
  }
  if (gone_) co_return;
  co_await send_news();
  if (query_.follow) co_await ask(false);
  send_cuts();
  send_end();
}

LogServer::LogServer(asio::io_context& engine_context, Engine& engine)
    : engine_context_(engine_context), engine_(engine) {}

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

void LogServer::follow(UnixSocket socket, std::string request, JobId job, FollowQuery query) {
  const auto follower = std::make_shared<Follower>(*this, std::move(job), std::move(query));
  // The coroutine begins later and on the other thread: what it is called with keeps it alive.
  asio::co_spawn(
      idle_.context(),
      [follower, moved = std::make_shared<UnixSocket>(idle_.take(std::move(socket))),
       text = std::move(request)] { return follower->run(std::move(*moved), text); },
      asio::detached);
}

}  // namespace dtrain::head

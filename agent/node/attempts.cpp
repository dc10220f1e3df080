#include "agent/node/attempts.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <deque>

#include "agent/node/attempt_state.hpp"
#include "agent/node/checkpoint_transfers.hpp"
#include "agent/supervise/client.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using UnixSocket = asio::local::stream_protocol::socket;

namespace {

// An event is at most a report and its wrapping.
constexpr std::size_t kLineLimit = std::size_t{4} << 20;
constexpr std::chrono::milliseconds kLongestPause{200};
// How long the end of an attempt is not told for its logs' sake. A good end is not in a hurry.
constexpr std::chrono::hours kLogsLimit{24};
constexpr std::chrono::minutes kLogsLimitOfLost{10};
// From a supervisor's end without a word until that is told.
constexpr std::chrono::milliseconds kMachineGoesDown{200};

// Behind the last acknowledged event: the head wants nothing more of this attempt.
fs::path done_mark(const paths::AttemptRoot& root) {
  return root.root / "done";
}

// Whether the agent was killed when it had been told of it and before it had a supervisor with a
// record: no rank of it has run, so it is as if it had not been told, and the head tells it again.
bool take_back_unbegun(const paths::AttemptRoot& root) {
  const auto lock = supervise::AttemptLock::take(root);
  if (!lock || fs::exists(root.supervisor()) || fs::exists(root.exit()) ||
      !entries_of(root.ranks()).empty()) {
    return false;
  }
  fs::remove(root.secrets());
  fs::remove(root.spec());
  return true;
}

}  // namespace

// One attempt: the connection to its supervisor, or what the supervisor left behind.
class Attempts::Link : public std::enable_shared_from_this<Attempts::Link> {
 public:
  Link(Attempts& owner, Key key)
      : owner_(&owner),
        key_(std::move(key)),
        root_(paths::attempt(owner.root_, key_.first, key_.second)),
        retry_(owner.executor_) {}

  void orphan() { owner_ = nullptr; }
  // Its job is to be forgotten: it ends, and then the job is.
  void give_up() {
    given_up_ = true;
    send(wire::StopRanks{std::chrono::seconds(0), "its job was removed"});
    if (!socket_) connect();
  }
  // Its job is gone, and whoever would acknowledge its end: a supervisor that waits for that goes.
  void dismiss() {
    if (state_ != AttemptState::ended || !socket_) return;
    const std::string line =
        wire::dump(wire::to_json(wire::AttemptCommand(wire::EventAck{last_seq_, {}}))) + "\n";
    if (writing_) return outgoing_.push_back(line);
    // Not waited for: one that does not read goes by its own limit.
    (void)::send(socket_->native_handle(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  bool done() const { return state_ == AttemptState::done; }
  bool running() const { return !done() && state_ != AttemptState::ended && !lost_told_; }
  bool unheard() const { return !done() && !lost_told_; }

  // Connects to the supervisor, newly if there is a connection; it sends what is not acknowledged.
  void connect() {
    if (done() || state_ == AttemptState::preparing || owner_ == nullptr) return;
    ++generation_;
    lost_told_ = false;
    if (socket_) {
      error_code ignored;
      socket_->close(ignored);
    }
    asio::co_spawn(
        owner_->executor_,
        [self = shared_from_this(), mine = generation_] { return self->run(mine); },
        [self = shared_from_this()](const std::exception_ptr& failed) { self->report(failed); });
  }

  void send(const wire::AttemptCommand& command) {
    note_ack(command);
    if (done()) return;
    outgoing_.push_back(wire::dump(wire::to_json(command)) + "\n");
    if (socket_ && socket_->is_open() && !writing_) {
      writing_ = true;
      asio::co_spawn(
          owner_->executor_,
          [self = shared_from_this(), mine = generation_] { return self->write_out(mine); },
          asio::detached);
    }
  }

  void mark_done() {
    heard(AttemptNews::over);
    if (owner_ == nullptr) return;
    if (owner_->hooks_.over) owner_->hooks_.over(key_);
    owner_->files_.add([root = root_] {
      try {
        write_file_atomic(done_mark(root), "");
      } catch (const Error& error) {
        log::warn("cannot mark the attempt as done", {{"error", error.what()}});
      }
    });
  }

  // Starts a supervisor for what is told; of a repeat nothing but a new connection comes.
  void start(const wire::StartAttempt& told) {
    failpoint("start.take.before");
    if (state_ == AttemptState::preparing) return;
    if (start_error_) return send_start_error();  // the head has not heard it
    heard(AttemptNews::told);
    if (state_ != AttemptState::preparing) return connect();
    wire::AttemptSpec spec = told.spec;
    try {
      if (owner_->hooks_.complete) owner_->hooks_.complete(spec);
    } catch (const Error& error) {
      return start_failed(error);
    }
    owner_->files_.add([self = shared_from_this(), node = owner_->root_,
                        agent = owner_->agent_binary_, executor = owner_->executor_,
                        secrets = told.secrets, spec = std::move(spec)] {
      std::optional<Error> failed;
      std::optional<pid_t> pid;
      try {
        pid = self->start_here(agent, node, spec, secrets);
      } catch (const std::exception& error) {
        failed = as_error(error);
      }
      asio::post(executor, [self, pid, failed] { self->started(pid, failed); });
    });
  }

 private:
  void start_failed(Error error) {
    error.while_doing("starting attempt " + std::to_string(key_.second) + " of " +
                      key_.first.str());
    start_error_ = std::move(error);
    send_start_error();
    ::unlink(root_.secrets().c_str());  // of no more use
    mark_done();
  }

  void send_start_error() {
    owner_->hooks_.send(wire::StartFailed{key_.first, key_.second, *start_error_});
  }

  void heard(AttemptNews news) {
    state_ = next(state_, news);
    changed();
  }

  void changed() {
    if (owner_ == nullptr) return;
    if (given_up_ && !running()) {  // behind what the head is told of its end
      asio::post(owner_->executor_, [self = shared_from_this()] {
        if (self->owner_ != nullptr) self->owner_->forget(self->key_.first);
      });
    }
    if (owner_->hooks_.changed) owner_->hooks_.changed();
  }

  // On the files' thread: a busy machine takes its time for a new process too. Absent when it has
  // been started before.
  std::optional<pid_t> start_here(const std::string& agent, const paths::NodeRoot& node,
                                  const wire::AttemptSpec& spec,
                                  const std::map<std::string, std::string>& secrets) const {
    std::error_code none_there;
    if (fs::exists(root_.spec(), none_there)) return std::nullopt;
    const fs::path storage = node.storage(spec.job);
    if (spec.storage_path == storage) clear_storage(storage, spec.attempt);
    make_folders(root_.ranks());
    const auto lock = supervise::AttemptLock::take(root_);
    if (!lock) throw Error(ErrorCode::conflict, "it is supervised already");
    make_folders(root_.errors());
    write_file_atomic(root_.secrets(), wire::dump(nlohmann::json(secrets)), 0600);
    write_file_atomic(root_.spec(), wire::dump(wire::to_json(spec)), 0600);
    failpoint("start.spawn.before");
    const pid_t pid = supervise::start_supervisor(agent, node, key_.first, key_.second, *lock);
    failpoint("start.spawn.after");
    return pid;
  }

  void started(std::optional<pid_t> pid, const std::optional<Error>& failed) {
    if (owner_ == nullptr) return;
    if (failed) {
      start_failed(*failed);
      return;
    }
    if (pid) child_ = {*pid, start_time(*pid), std::chrono::steady_clock::now()};
    heard(pid ? AttemptNews::spawned : AttemptNews::found);
    connect();
  }

  asio::awaitable<void> run(int mine) {
    std::chrono::milliseconds pause{1};
    while (mine == generation_ && owner_ != nullptr) {
      auto socket = std::make_shared<UnixSocket>(owner_->executor_);
      error_code failed;
      try {
        const asio::local::stream_protocol::endpoint endpoint(
            paths::supervisor_socket(owner_->root_.root, key_.first, key_.second).string());
        co_await socket->async_connect(endpoint, asio::redirect_error(asio::use_awaitable, failed));
      } catch (const std::exception& error) {
        log::debug("a supervisor's socket cannot be met", {{"why", error.what()}});
        failed = asio::error::not_found;
      }
      if (mine != generation_ || owner_ == nullptr) co_return;
      if (!failed) {
        socket_ = socket;
        pause = std::chrono::milliseconds(1);
        if (!outgoing_.empty() && !writing_) {
          writing_ = true;
          asio::co_spawn(
              owner_->executor_,
              [self = shared_from_this(), mine] { return self->write_out(mine); }, asio::detached);
        }
        co_await read_in(socket, mine);
        if (mine != generation_ || owner_ == nullptr) co_return;
        socket_.reset();
        if (done()) co_return;
      }
      // Not there: it has not opened its socket yet, or it has ended.
      if (look_for_end()) co_return;
      kill_if_stuck();
      retry_.expires_after(pause);
      pause = std::min(pause * 2, kLongestPause);
      co_await retry_.async_wait(asio::redirect_error(asio::use_awaitable, failed));
    }
  }

  asio::awaitable<void> read_in(std::shared_ptr<UnixSocket> socket, int mine) {
    std::string buffer;
    error_code failed;
    while (true) {
      const std::size_t length =
          co_await asio::async_read_until(*socket, asio::dynamic_buffer(buffer, kLineLimit), '\n',
                                          asio::redirect_error(asio::use_awaitable, failed));
      if (failed || mine != generation_ || owner_ == nullptr) co_return;
      const std::string line = buffer.substr(0, length - 1);
      buffer.erase(0, length);
      pass_line(line);
    }
  }

  void pass_line(const std::string& line) {
    try {
      const nlohmann::json json = wire::parse_json(line, "the supervisor's line", kLineLimit);
      if (wire::get_string(json, "type") == "hello") {
        heard(AttemptNews::hello);
        return;
      }
      pass_on(wire::attempt_event_from_json(json));
    } catch (const Error& error) {
      // A newer supervisor may say what we do not know; the head cannot know it either.
      log::warn("passed over a line of a supervisor",
                {{"job", key_.first.str()}, {"error", error.what()}});
    }
  }

  void pass_on(wire::AttemptEvent event) {
    if (!std::holds_alternative<wire::NodeFinished>(event.body)) {
      failpoint("event.pass.before");
      owner_->hooks_.send(wire::FromSupervisor{key_.first, key_.second, std::move(event)});
      failpoint("event.pass.after");
      return;
    }
    heard(AttemptNews::finished);
    last_seq_ = event.seq;
    after_logs(kLogsLimit, wire::FromSupervisor{key_.first, key_.second, std::move(event)});
  }

  // Told when the head has the logs: who follows them until the end sees all of them. Nobody wants
  // those of a job that is to be forgotten.
  void after_logs(std::chrono::milliseconds limit, wire::NodeMessage message) {
    auto tell = [self = shared_from_this(), message = std::move(message), mine = generation_,
                 limit](bool whole) mutable {
      if (self->owner_ == nullptr) return;
      auto* lost = std::get_if<wire::SupervisorLost>(&message);
      if (lost != nullptr && !whole) {
        lost->reason += "; the head has not taken the end of its log within " +
                        human_duration(limit) + ": that is on the node alone";
      }
      failpoint("event.pass.before", "last");
      self->owner_->hooks_.send(message);
      failpoint("event.pass.after", "last");
      if (mine == self->generation_ && lost != nullptr) self->lost_told_ = true;
      self->changed();
    };
    if (owner_->hooks_.after_logs && !given_up_) {
      owner_->hooks_.after_logs(key_, limit, std::move(tell));
    } else {
      tell(true);
    }
  }

  void note_ack(const wire::AttemptCommand& command) {
    const auto* ack = std::get_if<wire::EventAck>(&command);
    if (ack != nullptr && state_ == AttemptState::ended && ack->seq >= last_seq_) {
      // Passed on to the supervisor first, which then ends.
      asio::post(owner_->executor_, [self = shared_from_this()] { self->mark_done(); });
    }
  }

  void report(const std::exception_ptr& failed) const {
    if (!failed) return;
    try {
      std::rethrow_exception(failed);
    } catch (const std::exception& error) {
      log::error("the link to a supervisor failed",
                 {{"job", key_.first.str()}, {"error", error.what()}});
    }
  }

  // Tells its end, if no supervisor lives. What cannot be looked at may live.
  bool look_for_end() {
    try {
      auto lock = supervise::AttemptLock::take(root_);
      if (!lock) return false;
      std::error_code unseen;
      const bool has_record = fs::exists(root_.exit(), unseen);
      if (unseen) {
        throw Error(ErrorCode::io,
                    "cannot look at " + root_.exit().string() + ": " + unseen.message());
      }
      if (has_record) {
        ended({});
      } else {
        sweep(std::make_shared<const supervise::AttemptLock>(std::move(*lock)));
      }
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) {
        lost_reason_ = "its folder on the node is gone";
        ended({});
        return true;
      }
      if (error.what() != trouble_) {
        log::warn("cannot look for a supervisor", {{"error", error.what()}});
      }
      trouble_ = error.what();
      return false;
    }
  }

  // Kills what is left, and tells the end then.
  void sweep(std::shared_ptr<const supervise::AttemptLock> lock) {
    owner_->files_.add([self = shared_from_this(), lock = std::move(lock), mine = generation_,
                        executor = owner_->executor_] {
      const std::vector<pid_t> left = self->clean(*lock);
      asio::post(executor, [self, mine, left] {
        // Who has connected anew meanwhile finds the same end.
        if (mine == self->generation_ && self->owner_ != nullptr) self->ended(left);
      });
    });
  }

  // That it is dead then is seen by its lock.
  void kill_if_stuck() {
    const std::chrono::milliseconds limit = owner_->options_.start_limit;
    if (state_ != AttemptState::starting) return;
    if (std::chrono::steady_clock::now() - child_.started < limit) return;
    if (!child_.born || start_time(child_.pid) != child_.born) return;
    lost_reason_ =
        "its supervisor did not start within " + human_duration(limit) + " and was killed";
    log::warn("a supervisor does not start and is killed",
              {{"job", key_.first.str()}, {"pid", std::to_string(child_.pid)}});
    ::kill(child_.pid, SIGKILL);
    heard(AttemptNews::stuck);
  }

  // What a supervisor without a last word left behind; those that would not die.
  std::vector<pid_t> clean(const supervise::AttemptLock& lock) const {
    try {
      if (fs::exists(root_.exit())) return {};
      return supervise::clean_after(root_, lock);
    } catch (const std::exception& error) {
      log::error("cannot clean after an attempt", {{"error", error.what()}});
      return {};
    }
  }

  // The supervisor is gone: it left exit.json, or it was killed.
  void ended(const std::vector<pid_t>& left) {
    outgoing_.clear();
    std::string reason = lost_reason_;
    try {
      if (const auto record = supervise::read_exit(root_)) {
        for (const wire::AttemptEvent& event : record->events) pass_on(event);
        return;
      }
    } catch (const std::exception& error) {
      reason = std::string("its supervisor left no readable last word: ") + error.what();
    }
    log::warn("a supervisor ended without a last word",
              {{"job", key_.first.str()}, {"attempt", std::to_string(key_.second)}});
    // A machine that goes down ends this process too: then that is what the head is to hear of.
    const auto hold = std::make_shared<asio::steady_timer>(owner_->executor_, kMachineGoesDown);
    hold->async_wait([self = shared_from_this(), hold, reason, left](error_code) {
      if (self->owner_ == nullptr) return;
      self->after_logs(kLogsLimitOfLost,
                       wire::SupervisorLost{self->key_.first, self->key_.second, reason, left});
    });
  }

  asio::awaitable<void> write_out(int mine) {
    error_code failed;
    while (!outgoing_.empty() && socket_ && mine == generation_) {
      const std::string line = std::move(outgoing_.front());
      outgoing_.pop_front();
      const auto socket = socket_;
      failpoint("command.pass.before");
      co_await asio::async_write(*socket, asio::buffer(line),
                                 asio::redirect_error(asio::use_awaitable, failed));
      failpoint("command.pass.after");
      if (failed) break;  // acknowledgements are repeated, stops too
    }
    writing_ = false;
  }

  friend class Attempts;
  Attempts* owner_;
  Key key_;
  paths::AttemptRoot root_;
  std::shared_ptr<UnixSocket> socket_;
  asio::steady_timer retry_;
  std::deque<std::string> outgoing_;
  AttemptState state_ = AttemptState::known;
  std::optional<Error> start_error_;  // it was not started
  std::uint64_t last_seq_ = 0;        // of its last event; once it has ended
  bool given_up_ = false;             // its job is forgotten when it does not run any more
  bool lost_told_ = false;            // SupervisorLost was sent: there is nothing more to come
  int generation_ = 0;  // of the connection; an older coroutine ends when it sees a newer
  bool writing_ = false;
  struct {  // from starting on
    pid_t pid = 0;
    std::optional<std::uint64_t> born;  // its start_time
    std::chrono::steady_clock::time_point started;
  } child_;
  std::string lost_reason_ = "its supervisor was killed or crashed";
  std::string trouble_;  // why its lock could not be looked at, as was said
};

Attempts::Attempts(asio::any_io_executor executor, paths::NodeRoot root, std::string agent_binary,
                   Hooks hooks, Options options)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      agent_binary_(std::move(agent_binary)),
      hooks_(std::move(hooks)),
      options_(options),
      trash_(root_.trash()) {}

Attempts::~Attempts() {
  for (const auto& [key, link] : links_) link->orphan();
}

std::shared_ptr<Attempts::Link> Attempts::link(const Key& key) {
  auto& found = links_[key];
  if (!found) {
    found = std::make_shared<Link>(*this, key);
    if (hooks_.known) hooks_.known(key);
  }
  return found;
}

void Attempts::recover() {
  std::error_code none;
  for (const auto& job : fs::directory_iterator(root_.jobs(), none)) {
    for (const auto& folder : fs::directory_iterator(job.path(), none)) {
      const std::string name = folder.path().filename().string();
      const std::string prefix = "attempt-";
      if (!name.starts_with(prefix)) continue;
      const int number = number_from<int>(std::string_view(name).substr(prefix.size())).value_or(0);
      const JobId id(job.path().filename().string());
      std::error_code none_there;
      if (number < 1 || !valid_name(id.str()) ||
          fs::exists(done_mark({folder.path()}), none_there)) {
        continue;
      }
      try {
        if (take_back_unbegun({folder.path()})) continue;
      } catch (const std::exception& error) {
        log::warn("cannot look whether an attempt began", {{"error", error.what()}});
      }
      link({id, number});
    }
  }
  // What died without a word is swept now, whether or not the head is there to hear of it.
  for (const auto& [key, link] : links_) {
    try {
      if (const auto lock = supervise::AttemptLock::take(link->root_)) link->clean(*lock);
    } catch (const Error& error) {
      log::warn("cannot look for a supervisor", {{"error", error.what()}});
    }
  }
}

std::vector<std::pair<JobId, int>> Attempts::unfinished() const {
  std::vector<Key> keys;
  for (const auto& [key, link] : links_) {
    if (!link->done()) keys.push_back(key);
  }
  return keys;
}

std::vector<std::pair<JobId, int>> Attempts::running_ones() const {
  std::vector<Key> keys;
  for (const auto& [key, link] : links_) {
    if (link->running()) keys.push_back(key);
  }
  return keys;
}

bool Attempts::running() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& each) { return each.second->running(); });
}

bool Attempts::unheard() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& each) { return each.second->unheard(); });
}

std::vector<JobId> Attempts::on_disk() const {
  std::vector<JobId> jobs;
  std::error_code none;
  for (const auto& folder : fs::directory_iterator(root_.jobs(), none)) {
    const std::string name = folder.path().filename().string();
    if (valid_name(name)) jobs.emplace_back(name);
  }
  return jobs;
}

void Attempts::head_joined() {
  for (const auto& [key, link] : links_) link->connect();
}

void Attempts::start(const wire::StartAttempt& start) {
  link({start.spec.job, start.spec.attempt})->start(start);
}

void Attempts::command(const wire::ToSupervisor& command) {
  const auto found = links_.find({command.job, command.attempt});
  if (found == links_.end()) return;
  found->second->send(command.command);
}

void Attempts::command_all(const wire::AttemptCommand& command) {
  for (const auto& [key, link] : links_) {
    link->send(command);
    if (!link->socket_) link->connect();
  }
}

void Attempts::renew_leases() {
  for (const auto& [key, link] : links_) {
    if (!link->done() && link->socket_) link->send(wire::RenewLease{});
  }
}

void Attempts::forget(const JobId& job) {
  bool lives = false;
  for (auto at = links_.begin(); at != links_.end();) {
    if (at->first.first == job && at->second->running()) {
      lives = true;
      at->second->give_up();
      ++at;
    } else if (at->first.first == job) {
      at->second->dismiss();
      at->second->mark_done();
      at->second->orphan();
      at = links_.erase(at);
    } else {
      ++at;
    }
  }
  if (lives) return;
  files_.add([this, folder = root_.jobs() / job.str()] {
    try {
      trash_.take(folder);
    } catch (const std::exception& error) {
      log::warn("the files of a job stay", {{"why", error.what()}});
    }
  });
}

}  // namespace dtrain::node

#include "agent/supervise/supervisor.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <boost/asio/post.hpp>

#include "agent/supervise/last_words.hpp"
#include "agent/supervise/record.hpp"
#include "agent/supervise/setup_mark.hpp"
#include "agent/supervise/tree.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/program.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/loop.hpp"

namespace dtrain::supervise {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;
using std::chrono::milliseconds;

constexpr milliseconds kSlowDisk{60000};      // for bytes that are on their way to the disk
constexpr milliseconds kLeftoverGrace{1000};  // for what ranks that succeeded have left
constexpr milliseconds kUnkillable{5000};     // of SIGKILL without effect
constexpr milliseconds kLookAgain{100};       // at what is no child of ours, in its grace
constexpr milliseconds kLookAfterKill{20};

UniqueFd make_lease_timer() {
  // Time asleep counts for a lease, for the head does not sleep with us.
  UniqueFd fd(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) fd.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) throw errno_error("cannot make a timer", errno);
  return fd;
}

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw errno_error("cannot duplicate a descriptor", errno);
  return copy;
}

}  // namespace

Supervisor::Supervisor(SuperviseOptions options, wire::AttemptSpec spec, Surroundings surroundings)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      surroundings_(std::move(surroundings)),
      root_(paths::attempt({options_.root}, options_.job, options_.attempt)) {}

void Supervisor::run() {
  signals_.add(SIGCHLD);
  signals_.add(SIGTERM);
  signals_.add(SIGINT);
  wait_signal();
  notes_.assign(duplicate(output_.notify_fd()).release());
  wait_notes();

  const nlohmann::json hello = {{"type", "hello"},
                                {"version", wire::kSuperviseVersion},
                                {"job", spec_.job.str()},
                                {"attempt", spec_.attempt},
                                {"pid", ::getpid()}};
  control_.emplace(
      io_, paths::supervisor_socket(options_.root, options_.job, options_.attempt),
      wire::dump(hello), outbox_,
      Control::Hooks{[this](const wire::AttemptCommand& command) { on_command(command); },
                     [this] { linger(); }});
  reports_.emplace(
      io_, clock_,
      Reports::Hooks{
          [this](int rank, nlohmann::json body) { return on_report(rank, std::move(body)); },
          [this](int rank, std::string message) { warn(rank, std::move(message)); }});
  if (spec_.on_head_lost == OnHeadLost::stop) {
    lease_timer_.assign(make_lease_timer().release());
    wait_lease();
  }

  try {
    begin();
  } catch (const Error& error) {
    fail_start(error);
  }
  while (true) {
    try {
      wire::run_loop(io_);
      return;
    } catch (const std::exception& error) {
      // Whatever it was, no rank may be left without somebody who ends it.
      log::error("a defect: the attempt is ended", {{"error", error.what()}});
      end(Outcome::failed, std::string("the supervisor failed: ") + error.what(), milliseconds(0));
    }
  }
}

// ---- The start.

void Supervisor::begin() {
  make_folders(root_.ranks());
  make_folders(root_.errors());
  if (spec_.node_rank == 0) {
    master_ = bind_master(spec_.master_port);
    surroundings_.master_port = master_.port;
    emit(wire::MasterReady{master_.port});
  } else {
    surroundings_.master_port = spec_.master_port;
  }
  if (spec_.setup.empty() ||
      setup_has_run({options_.root}, spec_.job, spec_.attempt, !spec_.content)) {
    start_ranks();
  } else {
    start_setup_process();
  }
}

int Supervisor::add_stream(UniqueFd pipe, const fs::path& file) {
  return output_.add(std::move(pipe), open_file(file, O_WRONLY | O_CREAT | O_TRUNC));
}

void Supervisor::start_ranks() {
  wire::RanksStarted event;
  for (int local = 0; local < spec_.nproc; ++local) {
    const int number = spec_.first_rank + local;
    RankPlace place;
    place.local_rank = local;
    place.error_file = root_.error_file(number).string();
    const fs::path socket =
        paths::report_socket(options_.root, options_.job, options_.attempt, number);
    place.report_socket = socket.string();
    const int master = number == 0 ? master_.socket.get() : -1;
    if (master >= 0) place.master_listen_fd = kMasterListenFd;

    reports_->listen(number, socket);
    Started started = start_rank(spec_, rank_environment(spec_, surroundings_, place), master);
    Rank& rank = ranks_[number];
    rank.pid = started.pid;
    rank.streams.push_back(add_stream(std::move(started.out), root_.out(number)));
    rank.streams.push_back(add_stream(std::move(started.err), root_.err(number)));
    event.ranks.push_back({number, started.pid});
  }
  event.time = clock_.wall();
  log::info("ranks started", {{"ranks", std::to_string(event.ranks.size())}});
  emit(event);
}

// ---- What happens.

void Supervisor::wait_signal() {
  signals_.async_wait([this](boost::system::error_code failed, int number) {
    if (failed) return;
    wait_signal();
    if (number == SIGCHLD) {
      on_child();
    } else {
      end(Outcome::stopped, "the supervisor was told to stop by " + signal_name(number),
          spec_.stop_grace);
    }
  });
}

void Supervisor::on_child() {
  if (setup_pid_ != 0) {
    if (const auto exit = try_wait(setup_pid_)) setup_ended(*exit);
  }
  for (auto& [number, rank] : ranks_) {
    if (rank.exit) continue;
    if (const auto exit = try_wait(rank.pid)) rank_ended(number, rank, *exit);
  }
  reap_orphans(owned());
  advance();
}

void Supervisor::rank_ended(int number, Rank& rank, const ProcessExit& exit) {
  rank.exit = exit;
  rank.ended_at = clock_.wall();
  rank.drain_until = clock_.now() + kDrain;
  rank.stopped = ending_.has_value();
  ended_ranks_.push_back(number);
  log::info("rank ended", {{"rank", std::to_string(number)}, {"exit", exit.str()}});
  // A store that nobody serves must refuse, and not keep others waiting.
  if (number == 0) master_.socket.reset();
  reports_->drain(number);
  outbox_.flush_passing(number);
  if (!exit.ok() && !rank.stopped) {
    end(Outcome::failed,
        "rank " + std::to_string(number) + " on " + spec_.node.str() + ": " + exit.str(),
        spec_.stop_grace);
  }
}

void Supervisor::wait_notes() {
  notes_.async_wait(Descriptor::wait_read, [this](boost::system::error_code failed) {
    if (failed) return;
    wait_notes();
    on_notes();
  });
}

void Supervisor::on_notes() {
  for (const Output::Note& note : output_.take_notes()) {
    const bool ended = note.what == Output::Note::What::ended;
    std::optional<int> whose;
    if (setup_stream_ == note.stream && ended) setup_stream_.reset();
    for (auto& [number, rank] : ranks_) {
      const auto found = std::find(rank.streams.begin(), rank.streams.end(), note.stream);
      if (found == rank.streams.end()) continue;
      whose = number;
      if (ended) rank.streams.erase(found);
      break;
    }
    if (!ended && !std::exchange(dropping_told_, true)) {
      warn(whose, "output cannot be written and is dropped: " + note.reason);
    }
  }
  advance();
}

std::optional<std::uint64_t> Supervisor::on_report(int rank, nlohmann::json body) {
  const std::string type = wire::get_string(body, "type");
  if (recorder_) throw Error(ErrorCode::conflict, "the attempt has ended");
  if (type == "progress" || type == "heartbeat") {
    outbox_.push_passing(rank, std::move(body), clock_.now());
    control_->kick();
    return std::nullopt;
  }
  if (type == "checkpoint") {
    const fs::path path = wire::get_string(body, "path");
    body["path"] = (fs::path(spec_.workdir) / path).lexically_normal().string();
  }
  const std::uint64_t seq = outbox_.push(wire::RankReport{rank, std::move(body)});
  if (outbox_.full()) reports_->set_paused(true);
  control_->kick();
  return seq;
}

void Supervisor::on_command(const wire::AttemptCommand& command) {
  if (const auto* ack = std::get_if<wire::EventAck>(&command)) {
    on_ack(*ack);
  } else if (const auto* stop = std::get_if<wire::StopRanks>(&command)) {
    end(Outcome::stopped, stop->reason.empty() ? "stopped" : stop->reason,
        stop->grace ? *stop->grace : spec_.stop_grace);
  } else if (lease_timer_.is_open()) {
    wait_lease();
  }
}

void Supervisor::on_ack(const wire::EventAck& ack) {
  outbox_.acknowledge(ack.seq);
  if (ack.answer) reports_->answer(ack.seq, *ack.answer);
  reports_->durable(ack.seq);
  if (outbox_.relaxed()) reports_->set_paused(false);
  control_->kick();
  if (last_event_ && ack.seq >= *last_event_) io_.stop();
}

// Sets the lease's timer anew and waits for it.
void Supervisor::wait_lease() {
  const auto until_stop = std::max<std::chrono::nanoseconds>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(spec_.lease) * 8 / 10,
      std::chrono::milliseconds(1));
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(until_stop.count() / 1'000'000'000);
  spec.it_value.tv_nsec = static_cast<long>(until_stop.count() % 1'000'000'000);
  ::timerfd_settime(lease_timer_.native_handle(), 0, &spec, nullptr);
  lease_timer_.cancel();
  lease_timer_.async_wait(Descriptor::wait_read, [this](boost::system::error_code failed) {
    if (failed) return;
    end(Outcome::failed,
        "the head was not heard for " + human_duration(spec_.lease * 8 / 10) +
            " (on_head_lost: stop)",
        lease_grace());
  });
}

// The ranks must be gone before the lease is over, so the grace ends before it.
milliseconds Supervisor::lease_grace() const {
  return std::min<milliseconds>(spec_.stop_grace, spec_.lease * 15 / 100);
}

// ---- The end.

void Supervisor::end(Outcome outcome, std::string reason, milliseconds grace) {
  if (recorder_ || clean_at_) return;  // too late: it has ended by itself
  const Monotonic kill_at = clock_.now() + grace;
  if (ending_) {
    ending_->kill_at = std::min(ending_->kill_at, kill_at);
  } else {
    log::info("ending the attempt", {{"reason", reason}, {"grace", human_duration(grace)}});
    ending_ = Ending{outcome, std::move(reason), kill_at, std::nullopt};
    terminate(attempt_processes(spec_.token));
  }
  boost::asio::post(io_, [this] { advance(); });
}

void Supervisor::fail_start(const Error& error) {
  if (!ending_) lasting_ = dynamic_cast<const NotStartable*>(&error) != nullptr;
  end(Outcome::failed, "on " + spec_.node.str() + ": " + error.what(), milliseconds(0));
}

void Supervisor::advance() {
  if (recorder_) return;
  const Monotonic now = clock_.now();
  // What a setup has left running stays: it may be what the ranks need.
  if (setup_exit_ && setup_exit_->ok() && !ending_ && setup_drained(now)) {
    setup_exit_.reset();
    remember_setup();
    try {
      start_ranks();
    } catch (const Error& error) {
      fail_start(error);
    }
    return;
  }
  tell_setup_failure(now);
  tell_exits(now);
  const bool over = cleaned(now) && ended_ranks_.empty() && drained(now);
  if (over) {
    finish();
  } else {
    set_alarm(now);
  }
}

void Supervisor::tell_exits(Monotonic now) {
  // In the order in which they ended, so that the first failure is heard first.
  while (!ended_ranks_.empty()) {
    const int number = ended_ranks_.front();
    Rank& rank = ranks_.at(number);
    if (!rank.streams.empty() && now < rank.drain_until) return;
    wire::RankExited event;
    event.rank = number;
    event.exit = *rank.exit;
    event.time = rank.ended_at;
    event.stopped = rank.stopped;
    ErrorFile error = read_error_file(root_.error_file(number));
    event.error_message = std::move(error.message);
    event.error_time = error.time;
    event.last_lines = last_lines(root_.err(number));
    if (event.last_lines.empty()) event.last_lines = last_lines(root_.out(number));
    event.address_in_use = number == 0 && !event.exit.ok() && says_address_in_use(event.last_lines);
    ended_ranks_.pop_front();
    emit(event);
  }
}

bool Supervisor::cleaned(Monotonic now) {
  if (clean_at_) return true;
  if (setup_exit_ && !ending_) return false;  // the ranks have not begun
  if (direct_alive() && (!ending_ || now < ending_->kill_at)) return false;
  const std::vector<pid_t> left = attempt_processes(spec_.token);
  if (left.empty() && !direct_alive()) {
    clean_at_ = now;
    return true;
  }
  if (!ending_) {
    log::info("ranks have left processes behind", {{"count", std::to_string(left.size())}});
    const auto grace = std::min<milliseconds>(spec_.stop_grace, kLeftoverGrace);
    ending_ = Ending{Outcome::succeeded, "", now + grace, std::nullopt};
    terminate(left);
  }
  if (now < ending_->kill_at) return false;
  if (!ending_->killed_at) ending_->killed_at = now;
  kill_now(left);
  if (now - *ending_->killed_at < kUnkillable) return false;
  unkillable_ = left;
  clean_at_ = now;
  return true;
}

bool Supervisor::drained(Monotonic now) {
  // No process of the attempt is left: what is in the pipes is all there will be, and a disk that
  // is slow must not cost the last lines.
  if (clean_at_ && now >= *clean_at_ + (output_.busy() ? kSlowDisk : kDrain)) return true;
  return !setup_stream_ && std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return entry.second.streams.empty();
  });
}

void Supervisor::finish() {
  wire::NodeFinished event;
  if (ending_) {
    event.outcome = ending_->outcome;
    event.reason = ending_->reason;
    event.lasting = lasting_;
  }
  event.unkillable = unkillable_;
  event.dropped_bytes = output_.dropped_bytes();
  if (event.dropped_bytes > 0) {
    warn(std::nullopt, human_bytes(event.dropped_bytes) + " of output could not be written (" +
                           std::to_string(event.dropped_bytes) + " bytes)");
  }
  if (!unkillable_.empty()) {
    warn(std::nullopt, std::to_string(unkillable_.size()) + " processes could not be killed");
  }
  for (const auto& [number, rank] : ranks_) outbox_.flush_passing(number);
  reports_->refuse_all("the attempt has ended");
  log::info("the attempt is over", {{"reason", event.reason}});
  // The disk may take its time; who asks meanwhile gets an answer.
  recorder_.emplace();
  recorder_->add([this, event, events = outbox_.lasting(event)] {
    try {
      write_exit(root_, spec_.job, spec_.attempt, events);
    } catch (const Error& error) {
      log::error("how it ended could not be recorded", {{"error", error.what()}});
    }
    boost::asio::post(io_, [this, event] {
      last_event_ = outbox_.push(event);
      control_->kick();
      linger();
    });
  });
}

void Supervisor::linger() {
  if (!last_event_) return;
  linger_timer_.cancel();
  if (control_->connected()) return;
  linger_timer_.expires_after(options_.linger);
  linger_timer_.async_wait([this](boost::system::error_code failed) {
    if (failed) return;
    log::info("nobody came to hear how it ended; the record stays");
    io_.stop();
  });
}

// The next moment at which something is due without anything happening.
void Supervisor::set_alarm(Monotonic now) {
  std::optional<Monotonic> at;
  const auto due = [&at](Monotonic when) { at = at ? std::min(*at, when) : when; };
  if (!ended_ranks_.empty()) due(ranks_.at(ended_ranks_.front()).drain_until);
  if (clean_at_) due(std::max(*clean_at_ + kDrain, now + kLookAfterKill));
  if (ending_ && !clean_at_) {
    // What is no child of ours ends without a signal to us, so look again.
    if (now >= ending_->kill_at) {
      due(now + kLookAfterKill);
    } else {
      due(direct_alive() ? ending_->kill_at : std::min(ending_->kill_at, now + kLookAgain));
    }
  }
  if (setup_exit_ && !ending_) due(setup_drain_until_);
  if (!at) return;
  alarm_.expires_at(std::max(*at, now + milliseconds(1)));
  alarm_.async_wait([this](boost::system::error_code failed) {
    if (!failed) advance();
  });
}

// ---- Small things.

void Supervisor::emit(const wire::AttemptEventBody& body) {
  outbox_.push(body);
  control_->kick();
}

void Supervisor::warn(std::optional<int> rank, std::string message) {
  log::warn(message, {{"rank", rank ? std::to_string(*rank) : "-"}});
  if (!recorder_) emit(wire::AttemptWarning{rank, std::move(message)});
}

bool Supervisor::direct_alive() const {
  return setup_pid_ != 0 || std::any_of(ranks_.begin(), ranks_.end(),
                                        [](const auto& entry) { return !entry.second.exit; });
}

std::vector<pid_t> Supervisor::owned() const {
  std::vector<pid_t> pids;
  if (setup_pid_ != 0) pids.push_back(setup_pid_);
  for (const auto& [number, rank] : ranks_) {
    if (!rank.exit) pids.push_back(rank.pid);
  }
  return pids;
}

}  // namespace dtrain::supervise

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

#include "agent/supervise/attempt_processes.hpp"
#include "agent/supervise/last_words.hpp"
#include "agent/supervise/record.hpp"
#include "agent/supervise/supervisor.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/program.hpp"
#include "launcher/core/text.hpp"

// The end of an attempt on this node: its processes, their last words, the record.
namespace dtrain::supervise {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLauncherGrace{2000};  // of a start that failed: to take back what it began
constexpr milliseconds kSlowDisk{60000};      // for bytes that are on their way to the disk
constexpr milliseconds kLeftoverGrace{1000};  // for what ranks that succeeded have left
constexpr milliseconds kUnkillable{5000};     // of SIGKILL without effect
constexpr milliseconds kLookAgain{100};       // at what is no child of ours, in its grace
constexpr milliseconds kLookAfterKill{20};
constexpr milliseconds kGroupLimit{1000};  // for processes that have ended to leave their group

}  // namespace

void Supervisor::end(Outcome outcome, std::string reason, milliseconds grace) {
  if (recorder_ || clean_at_) return;  // too late: it has ended by itself
  const Monotonic kill_at = clock_.now() + grace;
  if (ending_) {
    ending_->kill_at = std::min(ending_->kill_at, kill_at);
  } else {
    log::info("ending the attempt", {{"reason", reason}, {"grace", human_duration(grace)}});
    ending_ = Ending{outcome, std::move(reason), kill_at, std::nullopt};
    launcher_->end();
    terminate(processes_left());
  }
  boost::asio::post(io_, [this] { advance(); });
}

void Supervisor::fail_start(const Error& error) {
  if (!ending_) lasting_ = dynamic_cast<const NotStartable*>(&error) != nullptr;
  const bool has_begun = !launcher_->children().empty();
  end(Outcome::failed, "on " + spec_.node.str() + ": " + error.what(),
      has_begun ? kLauncherGrace : milliseconds(0));
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
    event.time = rank.ended_at.wall;
    event.boot_time = rank.ended_at.boot;
    event.stopped = rank.stopped;
    ErrorFile error = read_error_file(root_.error_file(number));
    event.error_message = std::move(error.message);
    event.error_time = error.time;
    event.last_lines = last_lines(root_.err(number));
    if (event.last_lines.empty()) event.last_lines = last_lines(root_.out(number));
    event.address_in_use = number == 0 && !event.exit.ok() && says_address_in_use(event.last_lines);
    if (event.exit.ok()) {
      if (!rank.cause.empty()) warn(number, "a process of it was " + rank.cause);
    } else {
      event.cause = rank.cause;
      const bool by_loader = event.exit.code == 127;
      if (event.cause.empty() && by_loader) event.cause = missing_library(event.last_lines);
    }
    ended_ranks_.pop_front();
    emit(event);
  }
}

std::vector<pid_t> Supervisor::processes_left() const {
  std::vector<pid_t> found = attempt_processes(spec_.token);
  for (const pid_t pid : group_.processes()) {
    const bool known = std::find(found.begin(), found.end(), pid) != found.end();
    if (!known && start_time(pid)) found.push_back(pid);
  }
  if (!launcher_->busy()) return found;
  for (const pid_t child : launcher_->children()) {
    std::vector<pid_t> others = descendants(child);
    others.push_back(child);
    std::erase_if(found, [&others](pid_t pid) {
      return std::find(others.begin(), others.end(), pid) != others.end();
    });
  }
  return found;
}

bool Supervisor::cleaned(Monotonic now) {
  if (clean_at_) return true;
  // The ranks have not begun, or others' have not.
  if (!ending_ && (setup_exit_ || ranks_wait_ || launcher_->busy())) return false;
  if (direct_alive() && (!ending_ || now < ending_->kill_at)) return false;
  const std::vector<pid_t> left = processes_left();
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
  group_.kill();
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
  launcher_->over();
  cpus_.release();
  for (const auto& [number, rank] : ranks_) outbox_.flush_passing(number);
  reports_->refuse_all("the attempt has ended");
  log::info("the attempt is over", {{"reason", event.reason}});
  // The disk may take its time; who asks meanwhile gets an answer.
  recorder_.emplace();
  recorder_->add([this, event, group = group_, events = outbox_.lasting(event)] {
    group.remove(kGroupLimit);
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

}  // namespace dtrain::supervise

#include "agent/supervise/supervisor.hpp"

#include <sys/wait.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "agent/supervise/setup_mark.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/loop.hpp"

namespace dtrain::supervise {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;
using std::chrono::milliseconds;

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

std::string part_of(int rank) {
  return "rank-" + std::to_string(rank);
}

}  // namespace

Supervisor::Supervisor(SuperviseOptions options, wire::AttemptSpec spec, Surroundings surroundings,
                       AttemptGroup group)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      surroundings_(std::move(surroundings)),
      root_(paths::attempt({options_.root}, options_.job, options_.attempt)),
      group_(std::move(group)),
      kernel_log_(options_.places.root / "dev/kmsg", options_.places.proc / "ns/pid") {}

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
  launcher_ = make_launcher(io_, spec_, root_, options_.program, launcher_hooks());
  if (spec_.on_head_lost == OnHeadLost::stop) {
    lease_timer_.assign(make_lease_timer().release());
    renew_lease();
    wait_lease();
  }

  try {
    begin();
  } catch (const Error& error) {
    fail_start(error);
  } catch (const std::exception& error) {
    fail_start(as_error(error));
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
  group_.make();
  surroundings_.attempt_root = root_.root.string();
  if (spec_.node_rank == 0) {
    master_ = bind_master(spec_.master_port);
    surroundings_.master_port = master_.port;
    emit(wire::MasterReady{master_.port});
  } else {
    surroundings_.master_port = spec_.master_port;
  }
  launcher_->begin();
  if (spec_.setup.empty() ||
      setup_has_run({options_.root}, spec_.job, spec_.attempt, !spec_.content)) {
    start_ranks();
  } else {
    start_setup_process();
  }
}

UniqueFd Supervisor::enter(const std::string& part, std::uint64_t memory) {
  UniqueFd entry = group_.entry(part, memory);
  if (spec_.rank_memory > 0 && !group_.why_no_memory().empty() &&
      !std::exchange(no_limit_told_, true)) {
    warn(std::nullopt, "memory is not enforced: " + group_.why_no_memory() +
                           "; see \"Memory\" in docs/job_yaml.md");
  }
  return entry;
}

void Supervisor::bind_cpus() {
  if (spec_.rank_cpus == 0) return;
  try {
    cpus_.take(options_.places.root / "sys/devices/system", spec_.nproc, spec_.rank_cpus);
  } catch (const Error& error) {
    warn(std::nullopt, std::string("ranks are not bound to CPUs: ") + error.what() +
                           "; see \"CPUs of its own\" in docs/job_yaml.md");
  }
}

int Supervisor::add_stream(UniqueFd pipe, const fs::path& file) {
  return output_.add(std::move(pipe), open_file(file, O_WRONLY | O_CREAT | O_TRUNC));
}

RankLauncher::Hooks Supervisor::launcher_hooks() {
  return {[this] {
            if (!std::exchange(ranks_wait_, false) || ending_) return;
            try {
              start_ranks();
            } catch (const Error& error) {
              fail_start(error);
            }
          },
          [this](const Error& error) {
            if (!ending_) fail_start(error);
          },
          [this](const std::string& what) {
            if (!direct_alive() && !setup_exit_) return;
            end(Outcome::failed, "on " + spec_.node.str() + ": " + what, spec_.stop_grace);
          }};
}

void Supervisor::start_ranks() {
  ranks_wait_ = !launcher_->ready();
  if (ranks_wait_) return;
  failpoint("ranks.start.before");
  bind_cpus();
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
    place.of_launcher = launcher_->environment(local);
    const std::vector<int>& cpus = cpus_.of(local);
    place.cpus = cpu_list(cpus);

    reports_->listen(number, socket);
    const UniqueFd cgroup = enter(part_of(number), spec_.rank_memory);
    Started started = start_rank(spec_, rank_environment(spec_, surroundings_, place), master,
                                 cgroup.get(), cpus);
    Rank& rank = ranks_[number];
    rank.pid = started.pid;
    rank.streams.push_back(add_stream(std::move(started.out), root_.out(number)));
    rank.streams.push_back(add_stream(std::move(started.err), root_.err(number)));
    event.ranks.push_back({number, started.pid});
  }
  failpoint("ranks.start.after");
  event.time = clock_.wall();
  log::info("ranks started", {{"ranks", std::to_string(event.ranks.size())}});
  emit(event);
}

// ---- What happens.

void Supervisor::wait_signal() {
  signals_.async_wait([this](boost::system::error_code failed, int number) {
    if (failed) return;
    wait_signal();
    if (number == SIGCHLD && told_with_others_ && !ending_) {
      on_child_later();
    } else if (number == SIGCHLD) {
      on_child();
    } else {
      on_signal(number);
    }
  });
}

// Where the node agent has had it too it says why, and to the head first: what ends here before
// that would be a failure of the job.
void Supervisor::on_signal(int number) {
  const auto stop = [this, number, told = clock_.now()] {
    const auto waited = std::chrono::duration_cast<milliseconds>(clock_.now() - told);
    end(Outcome::stopped, "the supervisor was told to stop by " + signal_name(number),
        std::max(milliseconds(0), spec_.stop_grace - waited));
  };
  if (!told_with_others_ || ending_ || !control_->connected()) return stop();
  if (std::exchange(signal_waits_, true)) return;
  word_timer_.expires_after(kSignalsWordLimit);
  word_timer_.async_wait([this, stop](boost::system::error_code) {  // or the word has come
    signal_waits_ = false;
    if (!ending_) stop();
    on_child();
  });
}

// Slurm, and who stops a container, sends SIGTERM to ranks and supervisor at once: a rank that ends
// by it has not ended by itself, and the word that says so may come a moment later.
void Supervisor::on_child_later() {
  const Moment seen{clock_.wall(), clock_.boot()};
  for (auto& [number, rank] : ranks_) {
    siginfo_t info{};
    const bool ended =
        !rank.exit &&
        ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0;
    if (ended && !rank.seen_ended) rank.seen_ended = seen;
  }
  if (std::exchange(child_waits_, true)) return;
  child_timer_.expires_after(kWordLimit);
  child_timer_.async_wait([this](boost::system::error_code failed) {
    child_waits_ = false;
    if (!failed && !signal_waits_) on_child();
  });
}

void Supervisor::on_child() {
  if (setup_pid_ != 0) {
    if (const auto exit = try_wait(setup_pid_)) setup_ended(*exit);
  }
  // Of those that are found in one look nobody knows which ended first, and none of them was
  // stopped because another has failed: all are found before the first is judged, which may end the
  // rest.
  looked_ = {clock_.wall(), clock_.boot()};
  const bool stopped = ending_.has_value();
  std::vector<int> found;
  for (auto& [number, rank] : ranks_) {
    if (rank.exit) continue;
    rank.exit = try_wait(rank.pid);
    if (rank.exit) found.push_back(number);
  }
  for (const int number : found) rank_ended(number, ranks_.at(number), stopped);
  launcher_->on_child();
  reap_orphans(owned());
  advance();
}

void Supervisor::rank_ended(int number, Rank& rank, bool stopped) {
  const ProcessExit exit = *rank.exit;
  rank.ended_at = rank.seen_ended.value_or(looked_);
  rank.drain_until = clock_.now() + kDrain;
  rank.stopped = stopped;
  rank.cause = group_.memory_end(part_of(number), spec_.rank_memory);
  if (rank.cause.empty() && exit.signal == SIGKILL) rank.cause = kernel_log_.memory_end(rank.pid);
  ended_ranks_.push_back(number);
  launcher_->rank_ended(number - spec_.first_rank, exit);
  log::info("rank ended", {{"rank", std::to_string(number)}, {"exit", exit.str()}});
  // A store that nobody serves must refuse, and not keep others waiting.
  if (number == 0) master_.socket.reset();
  reports_->drain(number);
  outbox_.flush_passing(number);
  if (!exit.ok() && !rank.stopped && !ending_) {
    end(Outcome::failed,
        "rank " + std::to_string(number) + " on " + spec_.node.str() + ": " + exit.str() +
            (rank.cause.empty() ? "" : ", " + rank.cause),
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
  failpoint("report.take.before");
  const std::string type = wire::get_string(body, "type");
  if (recorder_) throw Error(ErrorCode::conflict, "the attempt has ended");
  if (type == "heartbeat" && spec_.beats) {
    outbox_.push_beat(wire::beat_of(rank, body));
    send_due();
    return std::nullopt;
  }
  if (type == "progress" || type == "heartbeat") {
    outbox_.push_passing(rank, std::move(body), clock_.now());
    send_due();
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
    word_timer_.cancel();
  } else if (const auto* heard = std::get_if<wire::EventHeard>(&command)) {
    on_heard(*heard);
  } else if (lease_timer_.is_open()) {
    renew_lease();
  }
}

void Supervisor::on_ack(const wire::EventAck& ack) {
  failpoint("ack.take.before");
  outbox_.acknowledge(ack.seq);
  if (ack.answer) reports_->answer(ack.seq, *ack.answer);
  reports_->durable(ack.seq);
  failpoint("ack.take.after");
  go_on();
  if (last_event_ && ack.seq >= *last_event_) io_.stop();
}

// A checkpoint whose shards are not all reported may be what is before it: the ranks whose reports
// are awaited must not be held up for that, nor wait for the answer.
void Supervisor::on_heard(const wire::EventHeard& heard) {
  outbox_.heard(heard.seq);
  if (heard.answer) reports_->answer(heard.seq, *heard.answer);
  reports_->durable_alone(heard.seq);
  go_on();
}

void Supervisor::go_on() {
  if (outbox_.relaxed()) reports_->set_paused(false);
  control_->kick();
  send_due();
}

void Supervisor::send_due() {
  if (recorder_) return;
  const std::optional<Monotonic> again = outbox_.send_due(clock_.now());
  control_->kick();
  if (!again) return;
  due_timer_.expires_at(*again);
  due_timer_.async_wait([this](boost::system::error_code failed) {
    if (!failed) send_due();
  });
}

void Supervisor::renew_lease() {
  const auto until_stop = std::max<std::chrono::nanoseconds>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(spec_.lease) * 8 / 10,
      std::chrono::milliseconds(1));
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(until_stop.count() / 1'000'000'000);
  spec.it_value.tv_nsec = static_cast<long>(until_stop.count() % 1'000'000'000);
  ::timerfd_settime(lease_timer_.native_handle(), 0, &spec, nullptr);
}

void Supervisor::wait_lease() {
  lease_timer_.async_wait(Descriptor::wait_read, [this](boost::system::error_code failed) {
    if (failed) return;
    // A lease that was renewed since the timer was seen to end is not over: nothing is to be read.
    std::uint64_t expirations = 0;
    if (::read(lease_timer_.native_handle(), &expirations, sizeof expirations) < 0) {
      return wait_lease();
    }
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
  std::vector<pid_t> pids = launcher_->children();
  if (setup_pid_ != 0) pids.push_back(setup_pid_);
  for (const auto& [number, rank] : ranks_) {
    if (!rank.exit) pids.push_back(rank.pid);
  }
  return pids;
}

}  // namespace dtrain::supervise

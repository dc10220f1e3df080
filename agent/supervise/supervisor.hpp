#pragma once

#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/supervise/control.hpp"
#include "agent/supervise/cpus.hpp"
#include "agent/supervise/environment.hpp"
#include "agent/supervise/group.hpp"
#include "agent/supervise/last_words.hpp"
#include "agent/supervise/launch.hpp"
#include "agent/supervise/outbox.hpp"
#include "agent/supervise/output.hpp"
#include "agent/supervise/rank_launcher.hpp"
#include "agent/supervise/reports.hpp"
#include "agent/supervise/supervise.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/attempt.hpp"

namespace dtrain::supervise {

// One attempt's share on this node, from its start to its last event. It owns the ranks and runs
// wholly on the thread that calls run(); only Output has others.
//
//   setup? -> (its launcher is ready) -> running
//     -> (ending: SIGTERM, grace, SIGKILL until none is left) -> over
class Supervisor {
 public:
  Supervisor(SuperviseOptions options, wire::AttemptSpec spec, Surroundings surroundings,
             AttemptGroup group);
  // Returns when the last event is acknowledged, or nobody came to hear it.
  void run();

 private:
  using Outcome = wire::NodeFinished::Outcome;
  // For a pipe that a grandchild holds.
  static constexpr std::chrono::milliseconds kDrain{1000};
  // For the word of a node agent that was told to leave with all else here: after a rank's end, and
  // after SIGTERM to this process.
  static constexpr std::chrono::milliseconds kWordLimit{200};
  static constexpr std::chrono::milliseconds kSignalsWordLimit{2000};

  struct Moment {
    WallTime wall;
    std::chrono::nanoseconds boot{0};
  };
  struct Rank {
    pid_t pid = 0;
    std::vector<int> streams;  // that have not ended
    std::optional<ProcessExit> exit;
    std::optional<Moment> seen_ended;  // before it is judged
    Moment ended_at;
    Monotonic drain_until;
    bool stopped = false;
    bool told = false;  // RankExited is out
    std::string cause;  // see RankExited
  };
  // How the processes are being ended.
  struct Ending {
    Outcome outcome = Outcome::succeeded;
    std::string reason;
    Monotonic kill_at;
    std::optional<Monotonic> killed_at;  // SIGKILL is being sent since
  };

  void begin();
  void start_setup_process();
  // Now, or as soon as the launcher is ready.
  void start_ranks();
  // The way into the attempt's group for one part of it; says once where memory is not limited.
  UniqueFd enter(const std::string& part, std::uint64_t memory);
  // As the spec says; where that cannot be, says so, and the ranks run on any CPUs.
  void bind_cpus();
  int add_stream(UniqueFd pipe, const fs::path& file);

  void wait_signal();
  void wait_notes();
  // Sets the lease's timer anew.
  void renew_lease();
  void wait_lease();
  void on_signal(int number);
  void on_child_later();
  void on_child();
  void setup_ended(const ProcessExit& exit);
  void rank_ended(int number, Rank& rank, bool stopped);
  void on_notes();
  std::optional<std::uint64_t> on_report(int rank, nlohmann::json body);
  void on_command(const wire::AttemptCommand& command);
  void on_ack(const wire::EventAck& ack);
  void on_heard(const wire::EventHeard& heard);
  // The outbox holds less.
  void go_on();
  void send_due();

  // Begins to end all processes. When that is under way already the first reason stays, and only
  // the grace may become shorter.
  void end(Outcome outcome, std::string reason, std::chrono::milliseconds grace);
  // The same when processes could not be started.
  void fail_start(const Error& error);
  // Does what can be done now, and sets the alarm for what is next. Called after every change.
  void advance();
  std::uint64_t setup_memory() const;
  bool setup_drained(Monotonic now) const;
  void remember_setup();
  void tell_setup_failure(Monotonic now);
  void tell_exits(Monotonic now);
  // Live ones, wherever they are.
  std::vector<pid_t> processes_left() const;
  // No process is left, or only such as cannot be killed.
  bool cleaned(Monotonic now);
  bool drained(Monotonic now);
  void finish();
  void linger();
  void set_alarm(Monotonic now);

  void emit(const wire::AttemptEventBody& body);
  void warn(std::optional<int> rank, std::string message);
  RankLauncher::Hooks launcher_hooks();
  bool direct_alive() const;
  std::vector<pid_t> owned() const;
  std::chrono::milliseconds lease_grace() const;

  SuperviseOptions options_;
  wire::AttemptSpec spec_;
  Surroundings surroundings_;
  paths::AttemptRoot root_;
  AttemptGroup group_;
  KernelLog kernel_log_;
  SystemClock clock_;

  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_{io_};
  boost::asio::steady_timer alarm_{io_};
  boost::asio::steady_timer linger_timer_{io_};
  boost::asio::steady_timer child_timer_{io_};
  boost::asio::steady_timer word_timer_{io_};
  boost::asio::steady_timer due_timer_{io_};
  // In a container or a step of Slurm.
  const bool told_with_others_ =
      std::getenv("DTRAIN_CONTAINED") != nullptr || std::getenv("SLURM_JOB_ID") != nullptr;
  bool child_waits_ = false;
  bool signal_waits_ = false;
  boost::asio::posix::stream_descriptor lease_timer_{io_};
  Output output_;
  boost::asio::posix::stream_descriptor notes_{io_};
  Outbox outbox_;
  std::optional<Control> control_;
  std::optional<Reports> reports_;
  std::unique_ptr<RankLauncher> launcher_;
  bool ranks_wait_ = false;  // for it

  MasterPort master_;
  BoundCpus cpus_;
  pid_t setup_pid_ = 0;  // 0: none runs
  std::optional<int> setup_stream_;
  std::optional<ProcessExit> setup_exit_;  // until the ranks are started
  Monotonic setup_drain_until_;
  std::map<int, Rank> ranks_;
  Moment looked_;                // when ended ranks were last looked for
  std::deque<int> ended_ranks_;  // in the order of their ends, not told yet
  std::optional<Ending> ending_;
  std::vector<pid_t> unkillable_;
  std::optional<Monotonic> clean_at_;  // no process is left since
  std::optional<std::uint64_t> last_event_;
  bool dropping_told_ = false;
  bool no_limit_told_ = false;
  bool lasting_ = false;            // see NodeFinished
  std::optional<Worker> recorder_;  // writes exit.json; there once nothing more can happen
};

}  // namespace dtrain::supervise

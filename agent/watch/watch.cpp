#include "agent/watch/watch.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "agent/watch/contained.hpp"
#include "agent/watch/keeper.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// Where the linker put the program's code.
extern "C" char __executable_start;
extern "C" char etext;

namespace dtrain::watch {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

struct Child {
  ChildSpec spec;
  pid_t pid = 0;     // 0: not running
  UniqueFd adopted;  // a pidfd: it was there before us, and another reaps it
  Clock::time_point started;
  Clock::time_point due;  // when to start it again
  Backoff backoff;
  bool over = false;  // of a contained watch: it has ended and is not started again

  bool is_head() const { return spec.argv.size() > 1 && spec.argv[1] == "head"; }
};

// A contained watch that ends.
struct Ending {
  int signal = 0;           // 0: nobody has told it, but a node agent has ended by itself
  Clock::time_point until;  // what runs then is killed
  // Until then who has not been told may end by itself: a head that ends its cluster tells nodes.
  Clock::time_point alone;
  bool nodes_told = false;
  bool hurried = false;     // told once more
  Clock::time_point told;   // when it was told before
  bool by_time = false;     // not told to end yet, but that its time is nearly over
  bool heads_told = false;  // no node agent runs any more
  int status = 0;
  // All children are over; what else is there is killed then, and not awaited for longer.
  std::optional<Clock::time_point> kill;
  Clock::time_point give_up;
  Leftovers leftovers;
};

// The oldest process of this user that runs just that.
std::optional<pid_t> find_running(const std::vector<std::string>& argv) {
  std::string wanted;
  for (const std::string& word : argv) wanted += word + '\0';
  std::optional<pid_t> found;
  std::uint64_t oldest = 0;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/proc", failed)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());  // 0 for what is no number
    struct stat status {};
    if (pid < 1 || ::stat(entry.path().c_str(), &status) != 0 || status.st_uid != ::geteuid()) {
      continue;
    }
    try {
      if (read_file_if_there(entry.path() / "cmdline") != wanted) continue;
    } catch (const Error&) {
      continue;  // it has just ended
    }
    const auto since = start_time(pid);
    if (since && (!found || *since < oldest)) {
      found = pid;
      oldest = *since;
    }
  }
  return found;
}

// What another watch has left running goes on. Without pidfds (Linux 5.3) there is no way to hear
// of its end: then a second one is started, which waits for the first one's lock.
bool adopt(Child& child) {
  const auto pid = find_running(child.spec.argv);
  if (!pid) return false;
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, *pid, 0)));
  if (!handle) return false;
  child.started = Clock::now();
  child.pid = *pid;
  child.adopted = std::move(handle);
  log::info("found running", {{"child", child.spec.name}, {"pid", std::to_string(*pid)}});
  return true;
}

// Gives back the pages of the program's code that starting touched: waiting needs few of them, and
// what is needed again comes from the page cache. Code is never written to, so nothing is lost.
void forget_code_pages() {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(&__executable_start) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(&etext) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded to pages
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// Waits for a signal of the set, the end of an adopted child, or `limit`. Gives the signal, or 0.
int wait_for_news(int signals, const std::map<std::string, Child>& children,
                  std::optional<Clock::duration> limit) {
  std::vector<pollfd> awaited{{signals, POLLIN, 0}};
  for (const auto& [name, child] : children) {
    if (child.adopted) awaited.push_back({child.adopted.get(), POLLIN, 0});
  }
  timespec left{};
  if (limit) {
    const auto count = std::chrono::duration_cast<std::chrono::nanoseconds>(*limit).count();
    left = {static_cast<time_t>(count / 1000000000), static_cast<long>(count % 1000000000)};
  }
  ::ppoll(awaited.data(), awaited.size(), limit ? &left : nullptr, nullptr);
  signalfd_siginfo news{};
  return ::read(signals, &news, sizeof news) == sizeof news ? static_cast<int>(news.ssi_signo) : 0;
}

std::string pid_text(std::optional<Milliseconds> contained) {
  nlohmann::json json = {{"pid", ::getpid()},
                         {"start_time", start_time(::getpid()).value_or(0)},
                         {"boot_id", boot_id()}};
  if (contained) json["end_within_ms"] = contained->count();
  return wire::dump(json);
}

// Whether the last watch of this root was on another machine, which shares it: one of this machine
// says so in watch.pid while it lives.
bool was_elsewhere(const paths::WatchRoot& root) {
  try {
    const auto text = read_file_if_there(root.pid());
    return !text || wire::get_string(wire::parse_json(*text, "watch.pid"), "boot_id") != boot_id();
  } catch (const Error&) {
    return false;
  }
}

class Watch {
 public:
  // From here on no signal is lost: PID 1 is not even ended by one that it does not wait for.
  Watch(const paths::WatchRoot& root, std::optional<Milliseconds> contained)
      : root_(root), contained_(contained), pid_(pid_text(contained)) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1})
      sigaddset(&signals, number);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw errno_error("cannot wait for signals", errno);
  }

  int run() {
    if (contained_) {
      ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
      ::signal(SIGPIPE, SIG_IGN);
      why_.reset(make_why());
      say("keeping the agents of " + root_.root.string() +
          "; once told to end, all has ended within " + human_duration(*contained_));
    }
    load();
    write_file_atomic(root_.pid(), pid_);
    while (true) {
      const int number = wait_for_news(signals_.get(), children_, time_left());
      if (number == SIGTERM || number == SIGINT) {
        if (!contained_) {
          log::info("watch ends; its children go on");
          remove_pid();
          return 0;
        }
        told(number);
      }
      if (number == SIGUSR1 && contained_ && !ending_) {
        begin_end(SIGTERM, "told that its time is nearly over");
        ending_->by_time = true;
      }
      if (number == SIGHUP) {
        try {
          load();
        } catch (const Error& error) {
          log::error("cannot read the children anew", {{"error", error.what()}});
        }
      }
      reap();
      for (auto& [name, child] : children_) {
        if (child.pid == 0 && !child.over && child.due <= Clock::now()) start(child);
      }
      if (ending_ && nothing_left()) return finish();
    }
  }

 private:
  // Of the limit: what runs then is killed.
  static constexpr double kUntilKilled = 0.95;
  static constexpr Milliseconds kSameWord{1000};
  static constexpr Milliseconds kHurried{6000};        // more than departure.hpp's
  static constexpr Milliseconds kLeftoverGrace{1000};  // of what setup commands left running, say
  static constexpr Milliseconds kLookForLeftovers{10};
  // A head that ends its cluster waits 5 s for the nodes, answers, and ends by itself.
  static constexpr Milliseconds kHeadShutdown{6000};
  static constexpr int kWhyInChild = 3;

  void load() {
    for (const ChildSpec& spec : read_children(root_)) {
      if (children_.contains(spec.name)) continue;
      Child& child = children_[spec.name];
      child.spec = spec;
      // Those of another container, or step, are not ours.
      if (contained_ || !adopt(child)) start(child);
    }
  }

  // Absent: until something happens.
  std::optional<Clock::duration> time_left() {
    std::optional<Clock::time_point> due;
    for (const auto& [name, child] : children_) {
      if (child.pid == 0 && !child.over && (!due || child.due < *due)) due = child.due;
    }
    if (ending_) due = std::min(due.value_or(ending_->until), ending_->until);
    if (ending_ && ending_->alone > Clock::now()) due = std::min(*due, ending_->alone);
    if (ending_ && ending_->kill) due = Clock::now() + kLookForLeftovers;
    if (!due) forget_code_pages();
    return due ? std::optional(std::max(*due - Clock::now(), Clock::duration::zero()))
               : std::nullopt;
  }

  std::vector<std::string> environment_for_children() const {
    std::vector<std::string> env = current_environment();
    for (const char* name : {kWatchRoot, kContained}) {
      std::erase_if(env, [mark = std::string(name) + "="](const std::string& entry) {
        return entry.starts_with(mark);
      });
    }
    if (!contained_) {
      env.push_back(std::string(kWatchRoot) + "=" + root_.root.string());
      return env;
    }
    Contained contained{*contained_, 0, why_ ? kWhyInChild : -1};
    if (ending_) {
      contained.told = ending_->signal == 0 ? SIGTERM : ending_->signal;
      contained.limit = std::chrono::duration_cast<Milliseconds>(
          std::max(ending_->until - Clock::now(), Clock::duration::zero()));
    }
    env.push_back(std::string(kContained) + "=" + to_environment(contained));
    return env;
  }

  void start(Child& child) {
    child.started = Clock::now();
    SpawnOptions options;
    options.argv = child.spec.argv;
    options.env = environment_for_children();
    options.workdir = "/";
    options.new_session = true;
    // Killed, a contained watch takes all along that it can; of PID 1 the kernel does more.
    if (contained_) options.death_signal = SIGTERM;
    if (why_) options.inherit = {{why_.get(), kWhyInChild}};
    try {
      child.pid = spawn(options);
      log::info("started", {{"child", child.spec.name}, {"pid", std::to_string(child.pid)}});
      tell(child.spec.name + " started");
    } catch (const Error& error) {
      child.pid = 0;
      child.due = Clock::now() + child.backoff.next(0ms);
      log::error("cannot start", {{"child", child.spec.name}, {"error", error.what()}});
      tell("cannot start " + child.spec.name + ": " + error.what());
    }
  }

  void reap() {
    while (const auto ended = try_wait_any()) {
      for (auto& [name, child] : children_) {
        if (!child.adopted && child.pid == ended->first) has_ended(child, ended->second);
      }  // what is none of them was left to us
    }
    for (auto& [name, child] : children_) {
      if (!child.adopted) continue;
      pollfd ended{child.adopted.get(), POLLIN, 0};
      if (::poll(&ended, 1, 0) <= 0) continue;
      child.adopted.reset();
      has_ended(child, std::nullopt);
    }
  }

  void has_ended(Child& child, const std::optional<ProcessExit>& exit) {
    const std::string how = exit ? exit->str() : "found running, so nobody knows how";
    const auto lived = std::chrono::duration_cast<Milliseconds>(Clock::now() - child.started);
    child.pid = 0;
    child.due = Clock::now() + child.backoff.next(lived);
    log::warn("ended", {{"child", child.spec.name}, {"how", how}});
    tell(child.spec.name + " ended: " + how);
    if (!contained_) return;
    // A node agent has left the cluster, whoever asked for that: nothing is to be kept.
    const bool has_left = exit->ok() || (exit->signal == 0 && exit->code == kLeftFiles);
    if (!ending_ && !child.is_head() && has_left) begin_end(0, child.spec.name + " has left");
    if (!ending_ || child.over) return;
    child.over = child.is_head() ? ending_->heads_told || (ending_->signal == 0 && exit->ok())
                                 : exit->signal == 0;
    if (!child.over) return;
    ending_->status = std::max(ending_->status, exit->signal == 0 ? exit->code : kCutShort);
  }

  // ---- The end of a contained watch: the nodes leave, then heads end, then all else.

  void told(int signal) {
    const auto now = Clock::now();
    if (!ending_) return begin_end(signal, "told to end (" + signal_name(signal) + ")");
    ending_->alone = now;
    if (ending_->signal == 0) {  // it is under way already
      ending_->signal = signal;
      ending_->told = now;
      tell("told to end (" + signal_name(signal) + ")");
      return tell_nodes(signal);
    }
    if (std::exchange(ending_->by_time, false)) {
      ending_->told = now;
      return;
    }
    // srun passes on what its step has had already.
    const bool is_same = std::getenv("SLURM_JOB_ID") != nullptr && now < ending_->told + kSameWord;
    if (is_same || std::exchange(ending_->hurried, true)) return;
    tell("told to end once more (" + signal_name(signal) + "): what still runs is killed");
    if (ending_->kill) {
      ending_->give_up -= std::max(*ending_->kill - now, Clock::duration::zero());
      ending_->kill = now;
      return;
    }
    ending_->until = std::min(ending_->until, now + Clock::duration(kHurried));
    tell_nodes(SIGQUIT);
  }

  void begin_end(int signal, const std::string& why) {
    const auto now = Clock::now();
    ending_.emplace();
    ending_->signal = signal;
    ending_->told = now;
    ending_->until = now + std::chrono::duration_cast<Milliseconds>(*contained_ * kUntilKilled);
    ending_->alone = now;
    if (signal == 0) ending_->alone += std::min<Milliseconds>(kHeadShutdown, *contained_ / 2);
    log::warn("the end begins", {{"why", why}});
    tell(why + ": the ranks here stop by their job's grace, and the head is told");
    const char* slurm_job = std::getenv("SLURM_JOB_ID");
    const std::string place =
        slurm_job == nullptr ? "its container" : "its step of Slurm job " + std::string(slurm_job);
    write_why(why_.get(), signal == 0 ? why + ", which shares " + place : place + " was " + why);
    if (signal != 0) tell_nodes(signal);
  }

  void tell_nodes(int signal) {
    ending_->nodes_told = true;
    for (auto& [name, child] : children_) {
      if (child.is_head() || child.over) continue;
      // SIGTERM may come to it from elsewhere too: Slurm sends it to all processes of a step.
      if (child.pid != 0) ::kill(child.pid, signal);
      child.due = Clock::now();  // one that does not run has something to tell, too
    }
  }

  bool all_ended() {
    const auto over = [](const auto& each) { return each.second.over; };
    const bool alone = Clock::now() < ending_->alone;
    if (!ending_->nodes_told && !alone) tell_nodes(SIGTERM);
    if (!ending_->heads_told && !alone &&
        std::all_of(children_.begin(), children_.end(),
                    [&](const auto& each) { return each.second.is_head() || over(each); })) {
      ending_->heads_told = true;
      for (auto& [name, child] : children_) {
        if (child.pid != 0) ::kill(child.pid, SIGTERM);
        child.over = child.pid == 0;
      }
    }
    if (std::all_of(children_.begin(), children_.end(), over)) return true;
    if (Clock::now() < ending_->until) return false;
    for (auto& [name, child] : children_) {
      if (std::exchange(child.over, true)) continue;
      tell(name + " did not end in time and is killed");
      if (child.pid != 0) ::kill(child.pid, SIGKILL);
    }
    ending_->status = std::max(ending_->status, kCutShort);
    return true;
  }

  // Children, and what they have left behind.
  bool nothing_left() {
    const auto now = Clock::now();
    if (!ending_->kill) {
      if (!all_ended()) return false;
      // Where a node agent has failed, supervisors may still have to stop their ranks.
      const bool failed = ending_->status != 0 && ending_->status != kCutShort;
      const auto left = std::max(ending_->until - now, Clock::duration::zero());
      const auto grace =
          failed && !ending_->hurried ? left : std::min<Clock::duration>(kLeftoverGrace, left);
      const auto last = std::chrono::duration_cast<Milliseconds>(*contained_ * (1 - kUntilKilled));
      ending_->kill = now + grace;
      ending_->give_up = *ending_->kill + std::max(last, kLeftoverGrace);
    }
    if (!ending_->leftovers.end(now >= *ending_->kill)) return true;
    if (now < ending_->give_up) return false;
    ending_->status = std::max(ending_->status, kCutShort);
    tell("some processes cannot be killed");
    return true;
  }

  int finish() {
    remove_pid();
    tell(ending_->status == 0
             ? "all has ended, and the head knows"
             : "all has ended, but was cut short; see the logs in " + root_.root.string());
    return ending_->status;
  }

  // Not that of a watch on another machine that has taken this one's place.
  void remove_pid() const {
    try {
      if (read_file_if_there(root_.pid()) == pid_) ::unlink(root_.pid().c_str());
    } catch (const Error& error) {
      log::warn("watch.pid stays", {{"why", error.what()}});
    }
  }

  void tell(const std::string& line) const {
    if (contained_) say(line);
  }

  paths::WatchRoot root_;
  std::optional<Milliseconds> contained_;
  const std::string pid_;  // what watch.pid holds
  UniqueFd signals_;
  UniqueFd why_;  // contained.hpp
  std::map<std::string, Child> children_;
  std::optional<Ending> ending_;
};

}  // namespace

std::vector<ChildSpec> read_children(const paths::WatchRoot& root) {
  return while_doing("reading " + root.config().string(), [&] {
    const nlohmann::json json = wire::parse_json(read_file(root.config()), "the file");
    const nlohmann::json& list = wire::member(json, "children");
    if (!list.is_array()) throw Error(ErrorCode::invalid, "\"children\" is no list");
    std::vector<ChildSpec> children;
    for (const nlohmann::json& item : list) {
      children.push_back({wire::get_string(item, "name"), wire::get_strings(item, "argv")});
      if (children.back().argv.empty()) throw Error(ErrorCode::invalid, "\"argv\" is empty");
    }
    return children;
  });
}

std::chrono::milliseconds Backoff::next(std::chrono::milliseconds lived) {
  if (lived >= 10s) wait_ = 0ms;
  const std::chrono::milliseconds now = wait_;
  wait_ = std::clamp<std::chrono::milliseconds>(wait_ * 2, 100ms, 10s);
  return now;
}

int watch_main(const paths::WatchRoot& root, std::optional<Milliseconds> contained) {
  log::open("watch", root.log().string());
  Watch watch(root, contained);
  // A watch that was killed a moment ago may still be on its way out.
  const auto until = Clock::now() + 2s;
  auto lock = FileLock::try_lock(root.lock());
  while (!lock && Clock::now() < until) {
    std::this_thread::sleep_for(10ms);
    lock = FileLock::try_lock(root.lock());
  }
  if (!lock) {
    // One on another machine may be cut off, or dead with its lock left on the storage: which head
    // goes on is for the heads to settle (agent/head/turn.hpp), and a watch starts nothing else
    // that would harm the other.
    if (!contained || !was_elsewhere(root)) {
      throw Error(ErrorCode::conflict, "another watch runs on " + root.root.string());
    }
    log::warn("a watch on another machine holds the lock; this one takes its place",
              {{"lock", root.lock().string()}});
  }
  return watch.run();
}

}  // namespace dtrain::watch

#include "agent/watch/watch.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
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

#include "agent/watch/keeper.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
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

std::vector<std::string> environment_for_children(const paths::WatchRoot& root) {
  std::vector<std::string> env = current_environment();
  const std::string mark = std::string(kWatchRoot) + "=";
  std::erase_if(env, [&](const std::string& entry) { return entry.starts_with(mark); });
  env.push_back(mark + root.root.string());
  return env;
}

void start(Child& child, const paths::WatchRoot& root) {
  child.started = Clock::now();
  SpawnOptions options;
  options.argv = child.spec.argv;
  options.env = environment_for_children(root);
  options.workdir = "/";
  options.new_session = true;
  try {
    child.pid = spawn(options);
    log::info("started", {{"child", child.spec.name}, {"pid", std::to_string(child.pid)}});
  } catch (const Error& error) {
    child.pid = 0;
    child.due = Clock::now() + child.backoff.next(0ms);
    log::error("cannot start", {{"child", child.spec.name}, {"error", error.what()}});
  }
}

void reap(Child& child) {
  if (child.pid == 0) return;
  std::string how = "found running, so nobody knows how";
  if (child.adopted) {
    pollfd ended{child.adopted.get(), POLLIN, 0};
    if (::poll(&ended, 1, 0) <= 0) return;
    child.adopted.reset();
  } else {
    const auto exit = try_wait(child.pid);
    if (!exit) return;
    how = exit->str();
  }
  const auto lived =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - child.started);
  child.pid = 0;
  child.due = Clock::now() + child.backoff.next(lived);
  log::warn("ended", {{"child", child.spec.name}, {"how", how}});
}

// Gives back the pages of the program's code that starting touched: waiting needs few of them, and
// what is needed again comes from the page cache. Code is never written to, so nothing is lost.
void forget_code_pages() {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(&__executable_start) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(&etext) / page * page;
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

void write_pid(const paths::WatchRoot& root) {
  const nlohmann::json json = {{"pid", ::getpid()},
                               {"start_time", start_time(::getpid()).value_or(0)},
                               {"boot_id", boot_id()}};
  write_file_atomic(root.pid(), wire::dump(json));
}

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

int watch_main(const paths::WatchRoot& root) {
  log::open("watch", root.log().string());
  // A watch that was killed a moment ago may still be on its way out.
  const auto until = Clock::now() + 2s;
  auto lock = FileLock::try_lock(root.lock());
  while (!lock && Clock::now() < until) {
    std::this_thread::sleep_for(10ms);
    lock = FileLock::try_lock(root.lock());
  }
  if (!lock) throw Error(ErrorCode::conflict, "another watch runs on " + root.root.string());

  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const UniqueFd signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd) throw errno_error("cannot wait for signals", errno);

  std::map<std::string, Child> children;
  const auto load = [&] {
    for (const ChildSpec& spec : read_children(root)) {
      if (children.contains(spec.name)) continue;
      Child& child = children[spec.name];
      child.spec = spec;
      if (!adopt(child)) start(child, root);
    }
  };
  load();
  write_pid(root);
  while (true) {
    std::optional<Clock::time_point> due;
    for (const auto& [name, child] : children) {
      if (child.pid == 0 && (!due || child.due < *due)) due = child.due;
    }
    if (!due) forget_code_pages();
    const int number = wait_for_news(
        signal_fd.get(), children,
        due ? std::optional(std::max(*due - Clock::now(), Clock::duration::zero())) : std::nullopt);
    if (number == SIGTERM || number == SIGINT) {
      log::info("watch ends; its children go on");
      ::unlink(root.pid().c_str());
      return 0;
    }
    if (number == SIGHUP) {
      try {
        load();
      } catch (const Error& error) {
        log::error("cannot read the children anew", {{"error", error.what()}});
      }
    }
    for (auto& [name, child] : children) {
      reap(child);
      if (child.pid == 0 && child.due <= Clock::now()) start(child, root);
    }
  }
}

}  // namespace dtrain::watch

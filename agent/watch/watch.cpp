#include "agent/watch/watch.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::watch {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

struct Child {
  ChildSpec spec;
  pid_t pid = 0;  // 0: not running
  Clock::time_point started;
  Clock::time_point due;  // when to start it again
  Backoff backoff;
};

void start(Child& child) {
  child.started = Clock::now();
  SpawnOptions options;
  options.argv = child.spec.argv;
  options.env = current_environment();
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
  const auto exit = try_wait(child.pid);
  if (!exit) return;
  const auto lived =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - child.started);
  child.pid = 0;
  child.due = Clock::now() + child.backoff.next(lived);
  log::warn("ended", {{"child", child.spec.name}, {"how", exit->str()}});
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
  auto lock = FileLock::try_lock(root.root / "watch.lock");
  while (!lock && Clock::now() < until) {
    std::this_thread::sleep_for(10ms);
    lock = FileLock::try_lock(root.root / "watch.lock");
  }
  if (!lock) throw Error(ErrorCode::conflict, "another watch runs on " + root.root.string());

  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);

  std::map<std::string, Child> children;
  const auto load = [&] {
    for (const ChildSpec& spec : read_children(root)) {
      if (children.contains(spec.name)) continue;
      Child& child = children[spec.name];
      child.spec = spec;
      start(child);
    }
  };
  load();
  write_pid(root);
  while (true) {
    std::optional<Clock::time_point> due;
    for (const auto& [name, child] : children) {
      if (child.pid == 0 && (!due || child.due < *due)) due = child.due;
    }
    int number = 0;
    if (due) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::max(*due - Clock::now(), Clock::duration::zero()));
      const timespec wait{static_cast<time_t>(left.count() / 1000000000),
                          static_cast<long>(left.count() % 1000000000)};
      number = ::sigtimedwait(&signals, nullptr, &wait);
    } else {
      number = ::sigwaitinfo(&signals, nullptr);
    }
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
      if (child.pid == 0 && child.due <= Clock::now()) start(child);
    }
  }
}

}  // namespace dtrain::watch

#include "agent/watch/keeper.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "agent/watch/watch.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"

namespace dtrain::watch {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kLookAgain = 1s;      // while there is to be no watch
constexpr auto kLookForNew = 5ms;    // while one is starting
constexpr auto kStartLimit = 10s;    // of a new one, until it holds its lock
constexpr auto kUnitGoesFirst = 5s;  // it starts its watch again after 2 s

// Whether a watch holds its lock. With `wait`, false is told once none does.
bool watch_lives(const paths::WatchRoot& root, bool wait) {
  const UniqueFd file = open_file(root.lock(), O_RDWR | O_CREAT);
  const int how = LOCK_SH | (wait ? 0 : LOCK_NB);
  while (::flock(file.get(), how) != 0) {
    if (errno == EWOULDBLOCK) return true;
    if (errno != EINTR) throw errno_error("cannot lock " + root.lock().string(), errno);
  }
  return false;
}

// True once one does; false at the limit.
bool wait_alive(const paths::WatchRoot& root, std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  while (!watch_lives(root, false)) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kLookForNew);
  }
  return true;
}

class Keeper {
 public:
  Keeper(paths::WatchRoot root, std::string program)
      : root_(std::move(root)), program_(std::move(program)) {}

  [[noreturn]] void keep() {
    while (true) {
      try {
        const auto since = Clock::now();
        watch_lives(root_, true);
        forget_child();
        if (was_ended()) {
          std::this_thread::sleep_for(kLookAgain);
          continue;
        }
        if (std::getenv(kWatchUnit) != nullptr && wait_alive(root_, kUnitGoesFirst)) continue;
        std::this_thread::sleep_for(backoff_.next(
            std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since)));
        if (!watch_lives(root_, false) && !was_ended()) start();
      } catch (const Error& error) {
        log::warn("the watch cannot be started again", {{"why", error.what()}});
        std::this_thread::sleep_for(kLookAgain);
      }
    }
  }

 private:
  // A watch that ends in order takes its pid file along.
  bool was_ended() const {
    std::error_code none;
    return !fs::exists(root_.pid(), none);
  }

  void start() {
    log::warn("the watch has died; it is started again");
    SpawnOptions options;
    options.argv = {program_, "watch", "--root", root_.root.string()};
    options.workdir = "/";
    options.new_session = true;
    child_ = spawn(options);
    wait_alive(root_, kStartLimit);
  }

  // It was a child of ours; the node agent reaps all of its children itself.
  void forget_child() {
    if (child_ == 0) return;
    try {
      try_wait(child_);
    } catch (const Error&) {
      // Reaped already.
    }
    child_ = 0;
  }

  paths::WatchRoot root_;
  std::string program_;
  pid_t child_ = 0;
  Backoff backoff_;
};

}  // namespace

void keep_watch(const std::string& program) {
  const char* root = std::getenv(kWatchRoot);
  if (root == nullptr || *root != '/') return;
  std::thread([keeper = Keeper({root}, program)]() mutable { keeper.keep(); }).detach();
}

}  // namespace dtrain::watch

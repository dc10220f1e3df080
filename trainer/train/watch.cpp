#include "trainer/train/watch.hpp"

#include <signal.h>

#include <chrono>
#include <optional>

#include "trainer/core/run.hpp"
#include "trainer/core/stacks.hpp"
#include "trainer/report/reporter.hpp"

namespace dtrain::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{200};
constexpr std::chrono::seconds kBeat{10};
// The rank that waits in the collective learns of it by itself and says more.
constexpr std::chrono::seconds kOwnWords{1};

}  // namespace

Watch::Watch(const Environment& environment, std::shared_ptr<comm::SharedGroup> group)
    : environment_(environment), group_(std::move(group)) {
  if (!group_ && !environment_.report_socket) return;
  // Signals are for the training's thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { work(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watch::report_break() const {
  const comm::Post last = group_->last_post(group_->rank());
  const std::string message =
      "a collective failed on another rank while this one was elsewhere: "
      "after step " +
      std::to_string(step_.load()) + ", last call " + describe(last);
  note_stacks(native_stacks());
  if (environment_.error_file) write_error_file(*environment_.error_file, message);
}

void Watch::work() {
  std::optional<Reporter> reporter;
  if (environment_.report_socket) {
    Reporter::Options options;
    options.warn = [](const std::string&) {};  // the training's own reporter says it
    reporter.emplace(*environment_.report_socket, options);
  }
  Clock::time_point beat = Clock::now();
  std::optional<Clock::time_point> broken_at;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    changed_.wait_for(lock, kLook, [this] { return ends_; });
    if (ends_) return;
    const Clock::time_point now = Clock::now();
    if (reporter && now - beat >= kBeat) {
      beat = now;
      std::optional<std::uint64_t> sequence;
      if (group_) sequence = group_->last_post(group_->rank()).sequence;
      reporter->heartbeat(step_.load(), sequence);
    }
    if (group_ && !broken_at && group_->broken()) broken_at = now;
    if (broken_at && now - *broken_at >= kOwnWords) {
      broken_at = Clock::time_point::max() - kOwnWords;
      report_break();
    }
  }
}

}  // namespace dtrain::train

#include "trainer/checkpoint/background.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace dtrain::train {
namespace {

constexpr int kNice = 10;  // a tenth of the weight of a normal thread
constexpr int kIoWhoProcess = 1;
constexpr int kIoBestEffortLast = (2 << 13) | 7;  // class best effort, lowest of its levels

void lower_priority() {
  // Both are for this thread alone (Linux knows no process here), and a refusal is no harm.
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  const int nice = std::max(kNice, ::getpriority(PRIO_PROCESS, thread));
  static_cast<void>(::setpriority(PRIO_PROCESS, thread, nice));
  static_cast<void>(::syscall(SYS_ioprio_set, kIoWhoProcess, 0, kIoBestEffortLast));
}

}  // namespace

Background::~Background() {
  thread_.request_stop();
}

void Background::start(Work work) {
  wait();
  {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
  }
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
  }
  changed_.notify_all();
}

void Background::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
  if (auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void Background::loop(const std::stop_token& stop) {
  lower_priority();
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return static_cast<bool>(work_); })) {
    Work& work = work_;  // start() changes it only when it is empty
    lock.unlock();
    std::exception_ptr error;
    try {
      work(stop);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    work_ = nullptr;
    changed_.notify_all();
    if (stop.stop_requested()) return;
  }
}

}  // namespace dtrain::train

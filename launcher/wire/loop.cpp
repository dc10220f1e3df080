#include "launcher/wire/loop.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/unique_fd.hpp"

namespace dtrain::wire {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How old the last look at the time without a processor may be: so much of what was waited for
// before a handler may be taken for its own.
constexpr milliseconds kLookEvery{1};

// What this thread has had of processors, ever.
nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

// What this thread has had of other things, ever.
rusage used() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage;
}

// Times the handlers of one thread. A handler begins when the one before it has ended or, if the
// loop has waited for something to do, when that wait is over.
class Stopwatch {
 public:
  explicit Stopwatch(milliseconds limit)
      : limit_(limit),
        schedstat_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)),
        mark_(Clock::now()) {}

  void handler_begins() {
    begin();
    look();
    what_.clear();
  }

  void handler_ended() {
    const Clock::time_point now = Clock::now();
    const nanoseconds whole = now - mark_;
    if (whole > limit_) {
      const nanoseconds before = waited_;
      look();
      const nanoseconds worked = processor_time() - worked_before_;
      const nanoseconds own = whole - (waited_ - before) - (waited_for_starts() - starts_before_);
      if (worked > limit_ || own > limit_ * kWaitingFactor) tell(worked, own);
    } else if (now - looked_ > kLookEvery) {
      look();
    }
    begin();
    what_.clear();
  }

  void handler_does(std::string_view what) { what_ = what; }

 private:
  void begin() {
    mark_ = Clock::now();
    worked_before_ = processor_time();
    starts_before_ = waited_for_starts();
    used_before_ = used();
  }

  // Reads how long this thread has been ready to run without a processor, ever.
  void look() {
    looked_ = Clock::now();
    std::array<char, 96> text{};
    unsigned long long waited = 0;
    if (::pread(schedstat_.get(), text.data(), text.size() - 1, 0) > 0 &&
        std::sscanf(text.data(), "%*u %llu", &waited) == 1) {
      waited_ = nanoseconds(waited);
    }
  }

  void tell(nanoseconds worked, nanoseconds own) const {
    const auto text = [](nanoseconds time) {
      return std::to_string(std::chrono::duration_cast<milliseconds>(time).count()) + " ms";
    };
    // Whether it was the disk: by what it read and wrote there, or because memory was short.
    const rusage now = used();
    log::error(kHandlerTooLong,
               {{"worked", text(worked)},
                {"took", text(own)},
                {"what", what_},
                {"page_faults", std::to_string(now.ru_majflt - used_before_.ru_majflt)},
                {"read_blocks", std::to_string(now.ru_inblock - used_before_.ru_inblock)},
                {"written_blocks", std::to_string(now.ru_oublock - used_before_.ru_oublock)}});
  }

  milliseconds limit_;
  UniqueFd schedstat_;
  Clock::time_point mark_;
  nanoseconds worked_before_ = processor_time();
  Clock::time_point looked_;
  nanoseconds waited_{0};
  nanoseconds starts_before_{0};
  rusage used_before_{};
  std::string what_;
};

thread_local Stopwatch* stopwatch = nullptr;

milliseconds limit_from_environment() {
  const char* value = std::getenv(kHandlerLimit);
  return milliseconds(value == nullptr ? 0 : std::atoi(value));
}

}  // namespace

void run_loop(boost::asio::io_context& context) {
  const milliseconds limit = limit_from_environment();
  if (limit.count() <= 0) {
    context.run();
    return;
  }
  Stopwatch mine(limit);
  stopwatch = &mine;
  mine.handler_begins();
  try {
    while (context.run_one() > 0) mine.handler_ended();
  } catch (...) {
    stopwatch = nullptr;
    throw;
  }
  stopwatch = nullptr;
}

void handler_does(std::string_view what) {
  if (stopwatch != nullptr) stopwatch->handler_does(what);
}

}  // namespace dtrain::wire

// The linker puts this in epoll_wait's place (meson.build), since Asio does not tell where its
// waiting ends and a handler begins.
extern "C" int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);
extern "C" int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  const int got = __real_epoll_wait(epoll, events, most, timeout);
  if (dtrain::wire::stopwatch != nullptr) dtrain::wire::stopwatch->handler_begins();
  return got;
}

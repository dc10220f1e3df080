#pragma once

#include <signal.h>

namespace dtrain {

// While it lives, this thread takes no signals, and threads that it starts never do: one that took
// a signal which the main thread has blocked, to wait for it, would end the process.
class NoSignals {
 public:
  NoSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace dtrain

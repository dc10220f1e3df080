#pragma once

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "launcher/core/unique_fd.hpp"

namespace dtrain::cli {

// Signals as a descriptor that can be polled, for its lifetime; they do not interrupt anything
// meanwhile. One at a time, in the main thread. SIGHUP stays ignored where it was, as by nohup.
class Signals {
 public:
  explicit Signals(std::initializer_list<int> numbers);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const noexcept { return fd_.get(); }
  // The next one that came; 0: none.
  int next();
  // The same of those that are to end something: all but that the window changed.
  int ending_fd() const noexcept { return ending_.get(); }
  int next_ending();
  // Waits for one at most so long; 0: none came.
  int wait(int milliseconds);

 private:
  friend class LetThrough;
  sigset_t before_{};
  UniqueFd fd_;
  UniqueFd ending_;
};

// A signal that came while a reader that has stopped kept us from writing.
struct Interrupted {
  int signal;
};

// As write_all(fd, text) of core/files; but throws Interrupted, the rest unwritten, when one of
// `signals` comes before `fd` takes more. That the window changed does not count and is not taken.
void write_interruptible(int fd, std::string_view text, Signals& signals);

// While it lives, signals do to this thread what they did before: usually, they end the process.
class LetThrough {
 public:
  explicit LetThrough(const Signals& signals);
  ~LetThrough();
  LetThrough(const LetThrough&) = delete;
  LetThrough& operator=(const LetThrough&) = delete;

 private:
  sigset_t blocked_{};
};

// While it lives, a signal that is to end something calls `then`, once, in a thread of its own. The
// signal stays there to be taken.
class OnSignal {
 public:
  OnSignal(const Signals& signals, std::function<void()> then);
  ~OnSignal();
  OnSignal(const OnSignal&) = delete;
  OnSignal& operator=(const OnSignal&) = delete;

 private:
  UniqueFd over_;  // an eventfd
  std::thread thread_;
};

// Requests a stop instead.
class StopOnSignal {
 public:
  explicit StopOnSignal(const Signals& signals)
      : on_signal_(signals, [this] { stop_.request_stop(); }) {}
  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  OnSignal on_signal_;
};

// Those by which a person or a terminal that is closed ends a command, while it must not go without
// a word: they request a stop.
class EndingSignals {
 public:
  const std::stop_token& token() const { return token_; }
  // From now on signals do again what they did before. The one that came until then has requested
  // the stop; 0: none, or this was ended already.
  int end();

 private:
  std::optional<Signals> signals_{std::in_place,
                                  std::initializer_list<int>{SIGINT, SIGTERM, SIGHUP}};
  std::optional<StopOnSignal> stop_{std::in_place, *signals_};
  std::stop_token token_ = stop_->token();
};

}  // namespace dtrain::cli

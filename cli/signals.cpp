#include "cli/signals.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

namespace dtrain::cli {
namespace {

int next_of(int signals) {
  signalfd_siginfo info{};
  return ::read(signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

}  // namespace

Signals::Signals(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) {
    struct sigaction now {};
    // While it is blocked it would come all the same.
    const bool is_ignored =
        number == SIGHUP && ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (!is_ignored) sigaddset(&set, number);
  }
  sigset_t ending = set;
  sigdelset(&ending, SIGWINCH);
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (fd_) ending_.reset(::signalfd(-1, &ending, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!ending_) {
    const int error = errno;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    throw errno_error("cannot watch signals", error);
  }
}

Signals::~Signals() {
  // One that came too late for us to act on is dropped, not left to kill us now.
  while (next() != 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int Signals::next() {
  return next_of(fd_.get());
}

int Signals::next_ending() {
  return next_of(ending_.get());
}

int Signals::wait(int milliseconds) {
  pollfd polled{fd_.get(), POLLIN, 0};
  ::poll(&polled, 1, milliseconds);
  return next();
}

void write_interruptible(int fd, std::string_view text, Signals& signals) {
  while (!text.empty()) {
    std::array<pollfd, 2> polled{{{fd, POLLOUT, 0}, {signals.ending_fd(), POLLIN, 0}}};
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) {
      // A pipe that takes any takes so much, and whole.
      const std::string_view piece = text.substr(0, PIPE_BUF);
      write_all(fd, piece);
      text.remove_prefix(piece.size());
      continue;
    }
    if (const int signal = signals.next_ending(); signal != 0) throw Interrupted{signal};
  }
}

LetThrough::LetThrough(const Signals& signals) {
  ::pthread_sigmask(SIG_SETMASK, &signals.before_, &blocked_);
}

LetThrough::~LetThrough() {
  ::pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
}

OnSignal::OnSignal(const Signals& signals, std::function<void()> then)
    : over_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ =
      std::thread([fds = std::array{signals.ending_fd(), over_.get()}, then = std::move(then)] {
        std::array<pollfd, 2> polled{{{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}}};
        while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
        }
        if (polled[0].revents != 0) then();
      });
}

OnSignal::~OnSignal() {
  ::eventfd_write(over_.get(), 1);
  thread_.join();
}

int EndingSignals::end() {
  stop_.reset();  // first: one that comes while its thread ends is taken, too
  const int signal = signals_ ? signals_->next_ending() : 0;
  signals_.reset();
  return signal;
}

}  // namespace dtrain::cli

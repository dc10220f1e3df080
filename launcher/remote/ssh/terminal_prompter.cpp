#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>

#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/prompter.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kLongestAnswer = 4096;

// What is typed is not shown while it lives.
class Silence {
 public:
  Silence(int terminal, bool echo) : terminal_(terminal) {
    if (echo || ::tcgetattr(terminal, &before_) != 0) return;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    now.c_lflag |= ECHONL;
    changed_ = ::tcsetattr(terminal, TCSAFLUSH, &now) == 0;
  }
  ~Silence() {
    if (changed_) ::tcsetattr(terminal_, TCSAFLUSH, &before_);
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  int terminal_;
  termios before_{};
  bool changed_ = false;
};

// A signal that comes while somebody types ends the wait for that, and does what it does when the
// terminal is as it was. So does a stop, whose requester may have taken the signal.
class Interruption {
 public:
  explicit Interruption(const std::stop_token& stop)
      : on_stop_(stop, [this] { ::eventfd_write(stopped_.get(), 1); }) {
    sigset_t ending;
    sigemptyset(&ending);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, number);
    ::pthread_sigmask(SIG_BLOCK, &ending, &before_);
    came_.reset(::signalfd(-1, &ending, SFD_CLOEXEC));
  }
  ~Interruption() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Until a line was typed; false when one of them came first.
  bool wait_for(int terminal) const {
    std::array<pollfd, 3> polled{
        {{terminal, POLLIN, 0}, {came_.get(), POLLIN, 0}, {stopped_.get(), POLLIN, 0}}};
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    return polled[1].revents == 0 && polled[2].revents == 0;
  }

 private:
  sigset_t before_{};
  UniqueFd came_;
  UniqueFd stopped_{::eventfd(0, EFD_CLOEXEC)};
  std::stop_callback<std::function<void()>> on_stop_;
};

class TerminalPrompter final : public Prompter {
 public:
  std::optional<std::string> ask(const std::string& prompt, bool echo,
                                 const std::stop_token& stop) override {
    const UniqueFd terminal(::open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY));
    if (!terminal) return std::nullopt;
    const Interruption interruption(stop);
    const Silence silence(terminal.get(), echo);
    write_all(terminal.get(), printable(prompt));
    std::string answer;
    char c = 0;
    while (answer.size() < kLongestAnswer) {
      if (!interruption.wait_for(terminal.get())) return std::nullopt;
      if (::read(terminal.get(), &c, 1) <= 0) return std::nullopt;  // Ctrl-D
      if (c == '\n') return answer;
      answer += c;
    }
    return std::nullopt;
  }

  bool confirm(const std::string& text, const std::stop_token& stop) override {
    const auto answer = ask(text + " (yes/no) ", true, stop);
    return answer == "yes" || answer == "y";
  }
};

}  // namespace

std::unique_ptr<Prompter> terminal_prompter() {
  return std::make_unique<TerminalPrompter>();
}

}  // namespace dtrain

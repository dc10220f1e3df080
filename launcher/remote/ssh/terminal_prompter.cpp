#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

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

class TerminalPrompter final : public Prompter {
 public:
  std::optional<std::string> ask(const std::string& prompt, bool echo) override {
    const UniqueFd terminal(::open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY));
    if (!terminal) return std::nullopt;
    write_all(terminal.get(), printable(prompt));
    const Silence silence(terminal.get(), echo);
    std::string answer;
    char c = 0;
    while (answer.size() < kLongestAnswer) {
      const ssize_t got = ::read(terminal.get(), &c, 1);
      if (got <= 0) return std::nullopt;  // Ctrl-D, or a signal that the program waits for
      if (c == '\n') return answer;
      answer += c;
    }
    return std::nullopt;
  }

  bool confirm(const std::string& text) override {
    const auto answer = ask(text + " (yes/no) ", true);
    return answer == "yes" || answer == "y";
  }
};

}  // namespace

std::unique_ptr<Prompter> terminal_prompter() {
  return std::make_unique<TerminalPrompter>();
}

}  // namespace dtrain

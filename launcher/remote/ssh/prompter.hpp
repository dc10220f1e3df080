#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace dtrain {

// Somebody to ask. Called by one thread at a time (SshShared sees to it), from any thread.
class Prompter {
 public:
  virtual ~Prompter() = default;
  // One line, without its newline; shown while typed only with `echo`. Absent: nobody is there,
  // they gave up, or `stop` was requested. `prompt` may come from a server and has been made
  // printable.
  virtual std::optional<std::string> ask(const std::string& prompt, bool echo,
                                         const std::stop_token& stop) = 0;
  // Yes or no to a text of several lines; no when nobody is there.
  virtual bool confirm(const std::string& text, const std::stop_token& stop) = 0;
};

// On /dev/tty; when there is none, nobody is there.
std::unique_ptr<Prompter> terminal_prompter();

}  // namespace dtrain

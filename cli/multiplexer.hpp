#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dtrain::cli {

// A terminal multiplexer on the node: what runs in it goes on when its terminal, the connection or
// the node agent ends. `down` ends it.
struct Multiplexer {
  bool tmux = false;
  bool screen = false;

  bool wanted() const noexcept { return tmux || screen; }
  // --tmux and --screen.
  void add_flags(CLI::App& app);

  // Attaches to the newest session, or begins one.
  std::vector<std::string> attach() const;
  // Runs the command, a line for the shell when `shell`, in a session of its own by this name, and
  // returns at once.
  std::vector<std::string> run(const std::string& session, const std::vector<std::string>& command,
                               bool shell) const;
};

}  // namespace dtrain::cli

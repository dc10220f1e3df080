#include "cli/multiplexer.hpp"

#include <CLI/CLI.hpp>

#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

// A node agent that starts again ends the commands that carry DTRAIN_EXEC_ROOT; what carries the
// other mark (launcher/core/cluster_processes.hpp) is left until `down`.
std::vector<std::string> script(const std::string& program, const std::string& line) {
  return {"/bin/sh", "-c",
          "command -v " + program + " >/dev/null || { echo 'dtrain: there is no " + program +
              " on this node' >&2; exit 127; }\n"
              "export DTRAIN_SETUP_ROOT=\"$DTRAIN_EXEC_ROOT\"\nunset DTRAIN_EXEC_ROOT\n" +
              line};
}

// Containers and machines without systemd have no folder for screen's sockets.
constexpr const char* kScreen =
    "[ -d /run/screen ] || { : \"${SCREENDIR:=$HOME/.screen}\"; export SCREENDIR; "
    "mkdir -p -m 700 \"$SCREENDIR\"; }\nexec screen ";

}  // namespace

void Multiplexer::add_flags(CLI::App& app) {
  CLI::Option* first = app.add_flag("--tmux", tmux, "In a tmux session, which goes on without you");
  app.add_flag("--screen", screen, "In a screen session, which goes on without you")
      ->excludes(first);
}

std::vector<std::string> Multiplexer::attach() const {
  if (screen) return script("screen", std::string(kScreen) + "-xRR");
  return script("tmux", "tmux has-session 2>/dev/null && exec tmux attach\nexec tmux new-session");
}

std::vector<std::string> Multiplexer::run(const std::string& session,
                                          const std::vector<std::string>& command,
                                          bool shell) const {
  const std::string line = shell ? command.front() : shell_join(command);
  if (screen) {
    return script("screen", std::string(kScreen) + "-dmS " + shell_quote(session) + " /bin/sh -c " +
                                shell_quote(line));
  }
  return script("tmux",
                "exec tmux new-session -d -s " + shell_quote(session) + " " + shell_quote(line));
}

}  // namespace dtrain::cli

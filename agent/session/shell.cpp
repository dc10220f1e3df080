#include "agent/session/shell.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "launcher/core/text.hpp"

namespace dtrain::session {
namespace {

// Until `exec 2>&1` stderr is /dev/null: an interactive bash without a terminal complains of that.
// $1 is the command, $2 the file that says that it began. Descriptor 9 is the real stdout.
constexpr const char* kBash =
    "exec 2>&1 9>&1 >/dev/null; set +H; "
    "if [ -r /etc/profile ]; then . /etc/profile; fi; "
    "if [ -r ~/.bash_profile ]; then . ~/.bash_profile; "
    "elif [ -r ~/.bash_login ]; then . ~/.bash_login; "
    "elif [ -r ~/.profile ]; then . ~/.profile; fi; "
    "if [ -r ~/.bashrc ]; then . ~/.bashrc; fi; "
    "unalias -a; shopt -u expand_aliases; exec >&9 9>&-; true >\"$2\"; (eval \"$1\")";
constexpr const char* kSh =
    "exec 2>&1 9>&1 >/dev/null; "
    "if [ -r /etc/profile ]; then . /etc/profile; fi; "
    "if [ -r ~/.profile ]; then . ~/.profile; fi; "
    "exec >&9 9>&-; true >\"$2\"; (eval \"$1\")";
constexpr const char* kBare = "exec 2>&1; true >\"$2\"; (eval \"$1\")";

std::string path_of(const std::vector<std::string>& env) {
  for (const std::string& entry : env) {
    if (entry.starts_with("PATH=")) return entry.substr(5);
  }
  return {};
}

std::optional<std::string> find_bash(const std::vector<std::string>& env) {
  for (const std::string& folder : split("/bin:/usr/bin:/usr/local/bin:" + path_of(env), ':')) {
    std::string candidate = folder + "/bash";
    if (folder.starts_with('/') && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

SpawnOptions options_of(const ShellCommand& command, std::vector<std::string> shell) {
  SpawnOptions options;
  options.argv = std::move(shell);
  options.argv.insert(options.argv.end(), {"dtrain", command.command, command.began.string()});
  options.env = command.env;
  options.workdir = command.home.string();
  return options;
}

}  // namespace

SpawnOptions shell_spawn(const ShellCommand& command) {
  if (const auto bash = find_bash(command.env)) {
    return options_of(command, {*bash, "--noprofile", "--norc", "-i", "-c", kBash});
  }
  return options_of(command, {"/bin/sh", "-c", kSh});
}

SpawnOptions bare_shell_spawn(const ShellCommand& command) {
  if (const auto bash = find_bash(command.env)) {
    return options_of(command, {*bash, "--noprofile", "--norc", "-c", kBare});
  }
  return options_of(command, {"/bin/sh", "-c", kBare});
}

std::vector<std::string> shell_environment(const std::vector<std::string>& base,
                                           const std::map<std::string, std::string>& over) {
  std::map<std::string, std::string> all{{"TERM", "dumb"}};
  for (const std::string& entry : base) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) all[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  for (const auto& [name, value] : over) all[name] = value;
  std::vector<std::string> env;
  for (const auto& [name, value] : all) env.push_back(name + "=" + value);
  return env;
}

std::vector<std::string> last_lines(std::string_view text, std::size_t count) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.empty()) return {};
  std::vector<std::string> lines = split(text, '\n');
  if (lines.size() > count) {
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  }
  for (std::string& line : lines) {
    // A progress bar overwrites itself: what stands there in the end is what was meant to be seen.
    while (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t last = line.rfind('\r');
    line = printable(last == std::string::npos ? line : line.substr(last + 1), false);
  }
  return lines;
}

}  // namespace dtrain::session

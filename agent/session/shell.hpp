#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"

// How a setup command, or a probe, is run: by bash where there is one, else by sh, after the user's
// profile and .bashrc as an interactive shell reads them, because that is where conda and CUDA are
// made known, and many a .bashrc gives up early otherwise. In the home folder, stdin /dev/null,
// stderr with stdout. What the profile prints is dropped, what it complains about is kept.
//
// Ray does the same by `bash --login -c -i 'true && source ~/.bashrc && export OMP_NUM_THREADS=1
// PYTHONWARNINGS=ignore && (COMMAND)'`. It differs in this: aliases are off (an rm that asks would
// never get an answer), the two variables are not set, a terminal is not there, and a profile that
// ends the shell does not pass for a command that succeeded.
namespace dtrain::session {

struct ShellCommand {
  std::string command;
  std::vector<std::string> env;  // all of it
  fs::path home;
  // A file that the shell makes when the profile is behind it: without it after the end, the
  // command never began.
  fs::path began;
};

// stdout_fd gets stdout and stderr; the caller sets it, and what else it wants.
SpawnOptions shell_spawn(const ShellCommand& command);
// The same without any profile.
SpawnOptions bare_shell_spawn(const ShellCommand& command);

// `base` with `over` over it; TERM=dumb where there is none.
std::vector<std::string> shell_environment(const std::vector<std::string>& base,
                                           const std::map<std::string, std::string>& over);

// The last `lines` lines of a text, printable.
std::vector<std::string> last_lines(std::string_view text, std::size_t lines);

}  // namespace dtrain::session

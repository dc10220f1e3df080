#include "agent/session/probe.hpp"

#include <unistd.h>

#include <chrono>
#include <map>
#include <string>

#include "agent/node/config.hpp"
#include "agent/session/setup_files.hpp"
#include "agent/session/shell.hpp"
#include "launcher/core/capture.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/process_table.hpp"

namespace dtrain::session {
namespace {

constexpr std::size_t kOutput = std::size_t{64} << 10;  // bytes

}  // namespace

wire::ProbeResult probe(const paths::NodeRoot& root, const fs::path& home,
                        const wire::Probe& request) {
  const std::string token = random_hex(16);
  ShellCommand shell;
  shell.command = request.command;
  shell.home = home;
  make_folders(root.setup());
  shell.began = root.setup() / ("probe-" + token);
  std::map<std::string, std::string> env = request.env;
  env[kSetupToken] = token;
  env[kSetupMark] = root.root.string();
  shell.env = shell_environment(node::login_environment(root), env);
  SpawnOptions options = shell_spawn(shell);
  options.new_session = true;
  Captured ran = capture(options, "", std::chrono::milliseconds(request.limit_ms));
  if (::unlink(shell.began.c_str()) != 0 && !ran.timed_out) {
    SpawnOptions bare = bare_shell_spawn(shell);
    bare.new_session = true;
    ran = capture(bare, "", std::chrono::milliseconds(request.limit_ms));
    ::unlink(shell.began.c_str());
  }
  // What it started in the background would keep what it looked at busy.
  sweep(kSetupToken, token, std::chrono::seconds(2));
  wire::ProbeResult result;
  result.exit_code = ran.exit.shell_code();
  result.timed_out = ran.timed_out;
  result.tail = last_lines(ran.out, wire::kTailLines);
  result.out = ran.out.substr(0, kOutput);
  return result;
}

}  // namespace dtrain::session

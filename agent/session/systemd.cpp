#include "agent/session/systemd.hpp"

#include <cstdlib>

#include "agent/session/host.hpp"
#include "agent/session/shell.hpp"
#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::session {
namespace {

constexpr std::chrono::seconds kLimit{10};

fs::path units_folder() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const fs::path folder =
      config != nullptr && config[0] == '/' ? fs::path(config) : home_folder() / ".config";
  return folder / "systemd" / "user";
}

// A word of ExecStart: quoted, with % and $ as themselves.
std::string unit_word(const std::string& word) {
  std::string quoted = "\"";
  for (const char c : word) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '%' || c == '$') quoted += c;
    quoted += c;
  }
  return quoted + '"';
}

Captured ask(std::vector<std::string> argv) {
  SpawnOptions options;
  options.argv = std::move(argv);
  options.env = manager_environment();
  return capture(options, "", kLimit);
}

void demand(const std::vector<std::string>& argv) {
  const Captured said = ask(argv);
  if (said.exit.ok() && !said.timed_out) return;
  throw Error(ErrorCode::failed, shell_join(argv) + " ended with " + said.exit.str() + ": " +
                                     join(last_lines(said.err + said.out, 5), " | "));
}

}  // namespace

std::string unit_name(const NodePlace& place) {
  return "dtrain-" + place.cluster.str() + "-" + place.node.str() + ".service";
}

fs::path unit_file(const NodePlace& place) {
  return units_folder() / unit_name(place);
}

std::string unit_text(const NodePlace& place) {
  return "[Unit]\n"
         "Description=dtrain node " +
         place.node.str() + " of cluster " + place.cluster.str() +
         "\n\n[Service]\n"
         "ExecStart=" +
         unit_word(place.program.string()) + " watch --root " +
         unit_word(place.watch().root.string()) +
         "\n"
         "WorkingDirectory=/\n"
         "KillMode=process\n"
         "Delegate=yes\n"
         "Restart=always\n"
         "RestartSec=2\n"
         "LimitNOFILE=infinity\n"
         "Environment=DTRAIN_WATCH_UNIT=1\n"
         "\n[Install]\n"
         "WantedBy=default.target\n";
}

bool unit_installed(const NodePlace& place) {
  std::error_code none;
  return fs::exists(unit_file(place), none);
}

bool enable_linger() {
  try {
    const Captured said = ask({"loginctl", "enable-linger"});
    return said.exit.ok() && !said.timed_out;
  } catch (const Error&) {
    return false;  // no loginctl
  }
}

bool unit_current(const NodePlace& place) {
  return read_file_if_there(unit_file(place)).value_or("") == unit_text(place);
}

std::string install_unit(const NodePlace& place) {
  const fs::path file = unit_file(place);
  make_folders(file.parent_path());
  write_file_atomic(file, unit_text(place), 0644);
  try {
    demand({"systemctl", "--user", "daemon-reload"});
    demand({"systemctl", "--user", "enable", unit_name(place)});
  } catch (Error& error) {
    std::error_code ignored;
    fs::remove(file, ignored);
    error.while_doing("installing a unit that starts the node's agents at boot");
    error.with_hint("this machine may have no systemd for users: leave --persist out");
    throw;
  }
  if (enable_linger()) return {};
  return "this user may not linger: the agents start at the first login after a boot, and end with "
         "the last one; an administrator can run: loginctl enable-linger USER";
}

void start_unit(const NodePlace& place) {
  demand({"systemctl", "--user", "restart", unit_name(place)});
}

void stop_unit(const NodePlace& place) {
  if (!unit_installed(place)) return;
  try {
    ask({"systemctl", "--user", "stop", unit_name(place)});
  } catch (const Error&) {
    // No systemctl any more: then nothing starts it either.
  }
}

void remove_unit(const NodePlace& place) {
  if (!unit_installed(place)) return;
  std::error_code ignored;
  try {
    ask({"systemctl", "--user", "disable", "--now", unit_name(place)});
    fs::remove(unit_file(place), ignored);
    ask({"systemctl", "--user", "daemon-reload"});
  } catch (const Error&) {
    // As above; the file must go all the same.
  }
  fs::remove(unit_file(place), ignored);
  fs::remove(units_folder() / "default.target.wants" / unit_name(place), ignored);
}

std::vector<std::string> in_scope(const NodePlace& place, const std::vector<std::string>& argv) {
  std::vector<std::string> all{"systemd-run",
                               "--user",
                               "--scope",
                               "--quiet",
                               "--slice=dtrain.slice",
                               "--description=dtrain node " + place.node.str(),
                               "--"};
  all.insert(all.end(), argv.begin(), argv.end());
  return all;
}

}  // namespace dtrain::session

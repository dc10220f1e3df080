#pragma once

#include <string>
#include <vector>

#include "agent/session/place.hpp"

// systemd's part in keeping a node's agents: a unit of the user's own service manager that starts
// the watch at boot (`up --persist`), and a scope outside of the login where logind ends what a
// login leaves behind. Everything by systemctl, loginctl and systemd-run, found in PATH.
namespace dtrain::session {

// ~/.config/systemd/user/dtrain-CLUSTER-NODE.service, or below XDG_CONFIG_HOME.
fs::path unit_file(const NodePlace& place);
std::string unit_name(const NodePlace& place);
// KillMode=process: the unit's end takes the watch alone, and jobs go on. Delegate=yes.
std::string unit_text(const NodePlace& place);

bool unit_installed(const NodePlace& place);
// Installed, and for this very binary.
bool unit_current(const NodePlace& place);
// Writes and enables it, has the user linger; does not start it. Gives what would keep it from
// working, empty if nothing. Error(failed) with what systemctl said.
std::string install_unit(const NodePlace& place);
// Stops the unit, takes it out and leaves lingering as it is: other things may live by it.
void remove_unit(const NodePlace& place);
void start_unit(const NodePlace& place);
void stop_unit(const NodePlace& place);

// Has the user's manager outlive logins. False when that is not allowed here.
bool enable_linger();

// argv that starts `argv` in a scope of the user's manager, without waiting for its end.
std::vector<std::string> in_scope(const NodePlace& place, const std::vector<std::string>& argv);

}  // namespace dtrain::session

#pragma once

#include <string>

#include "launcher/core/files.hpp"

// systemd's part in holding an attempt: it owns the machine's control groups, and gives a part of
// them away by Delegate=yes (systemd, docs/CGROUP_DELEGATION).
namespace dtrain::supervise {

// Has this process put into a scope of its own that is delegated to it: StartTransientUnit with its
// pid, as runc and crun do. Root asks the system's manager, which outlives logins; others ask their
// own, if that outlives this login: they linger, or this process is below it already. `group` is
// the group of this process as it is. Returns why not; empty: this process is in the scope.
std::string enter_scope(const std::string& name, const std::string& description,
                        const fs::path& group, const fs::path& proc, const fs::path& root);

}  // namespace dtrain::supervise

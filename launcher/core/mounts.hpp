#pragma once

#include <string>
#include <vector>

#include "launcher/core/files.hpp"

namespace dtrain {

// A line of /proc/PID/mountinfo.
struct Mount {
  std::string root;  // what of the file system is mounted: a folder, a control group
  std::string point;
  std::string type;
};

// All of this process's namespace, the newest last; none where there is no mountinfo. `proc` is
// /proc/self. Throws Error.
std::vector<Mount> mounts(const fs::path& proc = "/proc/self");

// Throws Error(conflict) when something is mounted at or below `tree`: who walks into it is in
// files of somebody else's. Where there is no /proc nothing is known to be mounted. Mounts of other
// namespaces are not seen, and not walked into either.
void refuse_mounts(const fs::path& tree);

}  // namespace dtrain

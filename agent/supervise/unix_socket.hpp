#pragma once

#include <optional>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"

// Unix stream sockets between processes of one user. All are non-blocking and close-on-exec.
namespace dtrain::supervise {

// Listens at `path`, 0600, in place of whatever socket an earlier process left there.
UniqueFd listen_unix(const fs::path& path);

// The next waiting connection; absent when none waits. One of another user (root aside) is closed
// and logged, and the next is looked at.
std::optional<UniqueFd> accept_own(int listener);

// Absent when nobody listens at `path`.
std::optional<UniqueFd> connect_unix(const fs::path& path);

}  // namespace dtrain::supervise

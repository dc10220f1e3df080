#pragma once

#include <optional>
#include <string>

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

// The same in the abstract namespace, which is the network namespace's: a name of at most 107 bytes
// that no file stands for. Who listens there may be anybody: another user (root aside) is as
// nobody. Error(conflict) when somebody has the name.
UniqueFd listen_abstract(const std::string& name);
std::optional<UniqueFd> connect_abstract(const std::string& name);

}  // namespace dtrain::supervise

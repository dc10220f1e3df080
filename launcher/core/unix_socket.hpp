#pragma once

#include <optional>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"

// Unix stream sockets between processes of one user. All are close-on-exec, and non-blocking but
// for dial_unix()'s. A path must fit: else Error(invalid).
namespace dtrain {

bool fits_socket(const fs::path& path);  // at most 107 bytes

// Listens at `path`, 0600, in place of whatever socket an earlier process left there.
UniqueFd listen_unix(const fs::path& path);

// The next waiting connection; absent when none waits. One of another user (root aside) is closed,
// the first of each logged, and the next is looked at; after many such it is absent too, and the
// listener still readable. Throws Error where none can be taken, as when no descriptor is left,
// whether one waits or not: while one does the listener stays readable. One thread at a time.
std::optional<UniqueFd> accept_own(int listener);

// Absent when nobody listens at `path`, or more wait there than it lets wait.
std::optional<UniqueFd> connect_unix(const fs::path& path);
// A blocking one, which waits until it is its turn. Null, and errno in `error`, when nobody is
// there.
UniqueFd dial_unix(const fs::path& path, int* error = nullptr);

// The same in the abstract namespace, which is the network namespace's: a name of at most 107 bytes
// that no file stands for. Who listens there may be anybody: another user (root aside) is as
// nobody. Error(conflict) when somebody has the name.
UniqueFd listen_abstract(const std::string& name);
std::optional<UniqueFd> connect_abstract(const std::string& name);

}  // namespace dtrain

#include "launcher/core/paths.hpp"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"

namespace dtrain::paths {
namespace {

std::string short_hash(const std::string& path) {
  return short_sum(path).substr(0, 12);
}

fs::path user_folder(std::int64_t uid) {
  return "/tmp/dtrain-" + std::to_string(uid);
}

// Whether it is a folder of this user; `there` is false where nothing has the name.
bool is_ours(const fs::path& folder, bool& there) {
  struct stat status {};
  there = ::lstat(folder.c_str(), &status) == 0;
  return there && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
}

// Anybody may make /tmp/dtrain-UID before this user does.
bool taken_by_another(const fs::path& folder) {
  bool there = false;
  return !is_ours(folder, there) && there;
}

// Leads to the root's sockets: who trusts the root need not trust /tmp.
fs::path socket_link(const fs::path& root) {
  return root / "sockets";
}

std::optional<fs::path> linked_folder(const fs::path& root) {
  std::error_code none;
  fs::path folder = fs::read_symlink(socket_link(root), none);
  bool there = false;
  if (none || !is_ours(folder.parent_path(), there)) return std::nullopt;
  return folder;
}

// In a folder whose name nobody can foresee.
fs::path hidden_folder() {
  std::string pattern = user_folder(::geteuid()).string() + ".XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw errno_error("cannot make " + pattern, errno);
  return fs::path(pattern) / "s";
}

// Makes the link; where another process was quicker, its folder counts.
fs::path lead_to(const fs::path& folder, const fs::path& root) {
  std::error_code none;
  if (!fs::is_directory(root, none)) return folder;
  for (int tries = 0; ::symlink(folder.c_str(), socket_link(root).c_str()) != 0; ++tries) {
    const int why = errno;
    if (const auto quicker = linked_folder(root)) return *quicker;
    if (why != EEXIST || tries == 2) {
      throw errno_error("cannot make " + socket_link(root).string(), why);
    }
    fs::remove(socket_link(root), none);  // what it led to is not ours, or not there any more
  }
  return folder;
}

}  // namespace

fs::path state_home() {
  const char* xdg = std::getenv("XDG_STATE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return fs::path(xdg) / "dtrain";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return fs::path(home) / ".local/state/dtrain";
  throw Error(ErrorCode::invalid, "neither XDG_STATE_HOME nor HOME names a folder")
      .with_hint("set HOME to your home folder");
}

fs::path cluster_state(const std::string& cluster_name) {
  return state_home() / "clusters" / short_name(cluster_name);
}

fs::path current_cluster() {
  return state_home() / "current";
}

fs::path file_sums() {
  return state_home() / "sums";
}

fs::path sync_records(const fs::path& home, const ClusterId& cluster) {
  return home / ".dtrain" / cluster.str() / "sync";
}

AttemptRoot attempt(const NodeRoot& node, const JobId& job, int attempt) {
  return {node.jobs() / job.str() / ("attempt-" + std::to_string(attempt))};
}

fs::path socket_folder_name(const fs::path& root) {
  if (const auto folder = linked_folder(root)) return *folder;
  return user_folder(::geteuid()) / short_hash(fs::absolute(root).lexically_normal().string());
}

fs::path socket_folder(const fs::path& root) {
  fs::path folder = socket_folder_name(root);
  if (folder != linked_folder(root)) {
    if (taken_by_another(folder.parent_path())) folder = hidden_folder();
    make_private_subfolder(folder);
    const fs::path chosen = lead_to(folder, root);
    if (chosen != folder) {  // this one was of chance
      ::rmdir(folder.c_str());
      ::rmdir(folder.parent_path().c_str());
    }
    folder = chosen;
  }
  make_private_subfolder(folder);
  std::error_code none;
  if (fs::is_directory(root, none)) {
    const fs::path whole = fs::absolute(root).lexically_normal();
    if (::symlink(whole.c_str(), root_link(folder).c_str()) != 0 && errno != EEXIST) {
      throw errno_error("cannot make " + root_link(folder).string(), errno);
    }
  }
  return folder;
}

fs::path socket_folders() {
  return user_folder(::geteuid());
}

fs::path root_link(const fs::path& sockets) {
  return sockets / "root";
}

fs::path head_socket(const fs::path& head_root) {
  return socket_folder(head_root) / "head.sock";
}

fs::path head_socket_of(const fs::path& head_root) {
  return socket_link(head_root.lexically_normal()) / "head.sock";
}

fs::path supervisor_socket(const fs::path& node_root, const JobId& job, int attempt) {
  return socket_folder(node_root) / (job.str() + "." + std::to_string(attempt) + ".ctl");
}

fs::path report_socket(const fs::path& node_root, const JobId& job, int attempt, int rank) {
  return socket_folder(node_root) /
         (job.str() + "." + std::to_string(attempt) + "." + std::to_string(rank));
}

}  // namespace dtrain::paths

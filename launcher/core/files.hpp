#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "launcher/core/unique_fd.hpp"

// Files that matter: written whole or not at all, read with a bound. All throw Error (io,
// not_found, denied, exhausted) with the path in the message.
namespace dtrain {

namespace fs = std::filesystem;

// A path for messages: on one line, and nothing in it drives a terminal.
std::string printable_path(const fs::path& path);

// open(2) with O_CLOEXEC, EINTR handled.
UniqueFd open_file(const fs::path& path, int flags, mode_t mode = 0600);

// At most `limit` bytes: a larger file is an Error(invalid).
std::string read_file(const fs::path& path, std::size_t limit = std::size_t{64} << 20);
// Absent when there is no such file.
std::optional<std::string> read_file_if_there(const fs::path& path,
                                              std::size_t limit = std::size_t{64} << 20);

// A temporary beside it, fsync, rename, fsync of the folder.
void write_file_atomic(const fs::path& path, std::string_view content, mode_t mode = 0600);

void write_all(int fd, std::string_view bytes);
void fsync_folder(const fs::path& folder);

// Makes the folder and those above it, 0700 each; an existing one is left as it is.
void make_folders(const fs::path& folder);

// Whether it is a folder, not a link to one, and this user's.
bool is_own_folder(const fs::path& folder);

// A folder for sockets and the like under /tmp: ours (is_own_folder), 0700, made when missing.
// Throws Error(denied) when it is somebody else's.
void make_private_folder(const fs::path& folder);
// That, and the same of what it lies in, which others may remove (rmdir) at any moment in which it
// is empty: then it is made again.
void make_private_subfolder(const fs::path& folder);

// What lies in a folder, by name: nothing where it is not there, Error where it cannot be told.
std::vector<fs::path> entries_of(const fs::path& folder);

// Which file a name leads to; none where it cannot be looked at.
class FileOf {
 public:
  FileOf() = default;
  explicit FileOf(const fs::path& name);
  // Whether the name leads there no more. A disk that does not answer says nothing.
  bool is_gone(const fs::path& name) const;

 private:
  dev_t device_ = 0;
  ino_t inode_ = 0;  // 0: none
};

// Removes a tree of ours without following links; a missing one is fine. One with a mount in it
// stays whole: an Error names the place.
void remove_tree(const fs::path& path);

// Holds an exclusive flock(2) on a file for its lifetime. try_lock gives nothing when another
// process holds it.
class FileLock {
 public:
  static std::optional<FileLock> try_lock(const fs::path& path);
  // Waits until it is free.
  static FileLock wait(const fs::path& path);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace dtrain

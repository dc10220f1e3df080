#pragma once

#include <sys/stat.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/files.hpp"

namespace dtrain {

// A folder and what is below it, and never anything else: no component of a path is followed if it
// is a symbolic link, whoever puts one there and when (openat2 with RESOLVE_BENEATH and
// NO_SYMLINKS, on kernels without it one component at a time with O_NOFOLLOW). Paths are relative,
// of plain components. One thread.
class Beneath {
 public:
  // `shown` is the folder's path, for messages. Throws Error when it cannot be opened as a folder;
  // the folder itself may be reached through links.
  explicit Beneath(fs::path shown);

  // Where an entry is: its folder, held open, and its name there. Valid until the next call.
  struct Place {
    int folder = -1;
    const char* name = "";
  };
  // Absent when a folder on the way is missing, is a link, or is no folder.
  std::optional<Place> find(const std::string& path);
  // As find; throws Error(not_found or denied) instead.
  Place place(const std::string& path);

  // lstat of the entry; absent when it or a folder on the way is not there.
  std::optional<struct stat> status(const std::string& path);
  UniqueFd open(const std::string& path, int flags, mode_t mode = 0);
  std::string link_target(const std::string& path);

  // Folders that were looked up are remembered; after one was replaced or removed, forget them.
  void forget();

  int fd() const noexcept { return folder_.get(); }
  fs::path shown(const std::string& path) const { return path.empty() ? shown_ : shown_ / path; }

  // For tests: the way of kernels before 5.6.
  void without_openat2() { walk_ = true; }

 private:
  UniqueFd open_folder(const std::string& path) const;

  fs::path shown_;
  UniqueFd folder_;
  std::string last_path_;
  std::string last_name_;
  UniqueFd last_;
  bool walk_ = false;
};

}  // namespace dtrain

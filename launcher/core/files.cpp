#include "launcher/core/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/mounts.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {

namespace {

// Where others remove what is made or removed here: each is lost only to somebody who was quicker.
constexpr int kTries = 100;

bool is_own(const struct stat& status) {
  return S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
}

// Invalid, and errno says why.
UniqueFd try_open(const fs::path& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return UniqueFd(fd);
}

std::string read_all(const UniqueFd& fd, const fs::path& path, std::size_t limit) {
  std::string content;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      throw errno_error("cannot read " + path.string(), errno);
    }
    if (got == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(got));
    if (content.size() > limit) {
      throw Error(ErrorCode::invalid,
                  path.string() + " is larger than " + std::to_string(limit) + " bytes");
    }
  }
}

}  // namespace

UniqueFd open_file(const fs::path& path, int flags, mode_t mode) {
  UniqueFd fd = try_open(path, flags, mode);
  if (!fd) throw errno_error("cannot open " + path.string(), errno);
  return fd;
}

std::string printable_path(const fs::path& path) {
  return printable(path.string(), false);
}

std::string read_file(const fs::path& path, std::size_t limit) {
  return read_all(open_file(path, O_RDONLY), path, limit);
}

std::optional<std::string> read_file_if_there(const fs::path& path, std::size_t limit) {
  // No look first: the file may go between a look and the opening.
  const UniqueFd fd = try_open(path, O_RDONLY, 0);
  if (fd) return read_all(fd, path, limit);
  if (errno == ENOENT) return std::nullopt;
  throw errno_error("cannot open " + path.string(), errno);
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0) {
      if (errno == EINTR) continue;
      throw errno_error("cannot write", errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

void fsync_folder(const fs::path& folder) {
  const UniqueFd fd = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(fd.get()) != 0) throw errno_error("cannot fsync " + folder.string(), errno);
}

void write_file_atomic(const fs::path& path, std::string_view content, mode_t mode) {
  const fs::path temporary =
      path.parent_path() / ("." + path.filename().string() + ".tmp-" + random_hex(4));
  try {
    const UniqueFd fd = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
    if (::fchmod(fd.get(), mode) != 0) throw errno_error("cannot chmod", errno);
    write_all(fd.get(), content);
    failpoint("file.fsync.before", path.native());
    if (::fsync(fd.get()) != 0) throw errno_error("cannot fsync", errno);
    failpoint("file.rename.before", path.native());
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw errno_error("cannot rename", errno);
  } catch (Error& error) {
    ::unlink(temporary.c_str());
    error.while_doing("writing " + path.string());
    throw;
  }
  failpoint("file.rename.after", path.native());
  fsync_folder(path.parent_path());
  failpoint("file.fsync.after", path.native());
}

void make_folders(const fs::path& folder) {
  std::error_code unseen;  // then mkdir says why
  for (int tries = 1; !folder.empty() && !fs::is_directory(folder, unseen); ++tries) {
    make_folders(folder.parent_path());
    if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return;
    if (errno != ENOENT || tries == kTries) {
      throw errno_error("cannot make folder " + folder.string(), errno);
    }
  }
}

bool is_own_folder(const fs::path& folder) {
  struct stat status {};
  return ::lstat(folder.c_str(), &status) == 0 && is_own(status);
}

void make_private_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw errno_error("cannot make folder " + folder.string(), errno);
  }
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) {
    throw errno_error("cannot look at " + folder.string(), errno);
  }
  if (!is_own(status)) {
    throw Error(ErrorCode::denied, folder.string() + " is not a folder of this user");
  }
  if ((status.st_mode & 077) != 0 && ::chmod(folder.c_str(), 0700) != 0) {
    throw errno_error("cannot chmod " + folder.string(), errno);
  }
}

void make_private_subfolder(const fs::path& folder) {
  for (int tries = 1;; ++tries) {
    try {
      make_private_folder(folder.parent_path());
      return make_private_folder(folder);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found || tries == kTries) throw;
    }
  }
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  fs::directory_iterator at(folder, failed);
  for (const fs::directory_iterator end; !failed && at != end; at.increment(failed)) {
    entries.push_back(at->path());
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw errno_error("cannot list " + printable_path(folder), failed.value());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

FileOf::FileOf(const fs::path& name) {
  struct stat status {};
  if (::stat(name.c_str(), &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

bool FileOf::is_gone(const fs::path& name) const {
  struct stat status {};
  if (inode_ == 0) return false;
  if (::stat(name.c_str(), &status) != 0) return errno == ENOENT || errno == ENOTDIR;
  return status.st_dev != device_ || status.st_ino != inode_;
}

void remove_tree(const fs::path& path) {
  refuse_mounts(path);
  // Others may remove it as well, as hosts that share a home do: what one of them was quicker with
  // is an error of remove_all().
  std::error_code failed;
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(path, failed);
    if (failed != std::errc::no_such_file_or_directory) break;
  }
  if (failed) throw errno_error("cannot remove " + path.string(), failed.value());
}

std::optional<FileLock> FileLock::try_lock(const fs::path& path) {
  UniqueFd fd = open_file(path, O_RDWR | O_CREAT);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return FileLock(std::move(fd));
  if (errno == EWOULDBLOCK) return std::nullopt;
  throw errno_error("cannot lock " + path.string(), errno);
}

FileLock FileLock::wait(const fs::path& path) {
  UniqueFd fd = open_file(path, O_RDWR | O_CREAT);
  while (::flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) throw errno_error("cannot lock " + path.string(), errno);
  }
  return FileLock(std::move(fd));
}

}  // namespace dtrain

#include "agent/supervise/lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

namespace dtrain::supervise {

std::optional<AttemptLock> AttemptLock::take(const paths::AttemptRoot& root) {
  UniqueFd fd = open_file(root.root, O_RDONLY | O_DIRECTORY);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return AttemptLock(std::move(fd));
  if (errno == EWOULDBLOCK) return std::nullopt;
  throw errno_error("cannot lock " + root.root.string(), errno);
}

AttemptLock AttemptLock::inherit(const paths::AttemptRoot& root, int fd) {
  struct stat folder {};
  struct stat given {};
  if (::stat(root.root.c_str(), &folder) != 0 || ::fstat(fd, &given) != 0 ||
      folder.st_dev != given.st_dev || folder.st_ino != given.st_ino ||
      ::flock(fd, LOCK_EX | LOCK_NB) != 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(ErrorCode::invalid,
                "descriptor " + std::to_string(fd) + " is not the lock of " + root.root.string());
  }
  return AttemptLock(UniqueFd(fd));
}

}  // namespace dtrain::supervise

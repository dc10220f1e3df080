#include "launcher/files/beneath.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

// Old kernels do not know it; some sandboxes refuse what they do not know.
std::atomic<bool> have_openat2{true};

// -1 and errno; ENOSYS when the kernel has no openat2.
int open_beneath(int folder, const char* path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  while (true) {
    const auto fd = static_cast<int>(::syscall(SYS_openat2, folder, path, &how, sizeof how));
    // EAGAIN: something was renamed meanwhile, and the kernel could not be sure.
    if (fd >= 0 || (errno != EINTR && errno != EAGAIN)) return fd;
  }
}

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

}  // namespace

Beneath::Beneath(fs::path shown) : shown_(std::move(shown)) {
  folder_ = open_file(shown_, O_RDONLY | O_DIRECTORY);
}

UniqueFd Beneath::open_folder(const std::string& path) const {
  if (!walk_ && have_openat2) {
    UniqueFd fd(open_beneath(folder_.get(), path.c_str(), kFolderFlags));
    if (fd || (errno != ENOSYS && errno != EPERM && errno != E2BIG)) return fd;
    have_openat2 = false;
  }
  UniqueFd here;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    if (name.empty() || name == "." || name == "..") {
      errno = EXDEV;
      return {};
    }
    const int from = here ? here.get() : folder_.get();
    here.reset(::openat(from, name.c_str(), kFolderFlags));
    if (!here) return {};
    begin = end + 1;
  }
  return here;
}

std::optional<Beneath::Place> Beneath::find(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  last_name_ = slash == std::string::npos ? path : path.substr(slash + 1);
  if (slash == std::string::npos) return Place{folder_.get(), last_name_.c_str()};
  const std::string_view folder(path.data(), slash);
  if (!last_ || folder != last_path_) {
    last_path_ = folder;
    last_ = open_folder(last_path_);
    if (!last_) {
      const int error = errno;
      last_path_.clear();
      errno = error;
      return std::nullopt;
    }
  }
  return Place{last_.get(), last_name_.c_str()};
}

Beneath::Place Beneath::place(const std::string& path) {
  if (const auto found = find(path)) return *found;
  const int error = errno;
  const std::string folder = printable_path(shown(path).parent_path());
  if (error == ELOOP || error == ENOTDIR || error == EXDEV) {
    throw Error(ErrorCode::denied, folder + " is, or is below, a link or a file");
  }
  throw errno_error("cannot open " + folder, error);
}

std::optional<struct stat> Beneath::status(const std::string& path) {
  const auto where = find(path);
  if (!where) {
    if (errno == ENOENT || errno == ELOOP || errno == ENOTDIR || errno == EXDEV) {
      return std::nullopt;
    }
    throw errno_error("cannot look at " + printable_path(shown(path)), errno);
  }
  struct stat status {};
  if (::fstatat(where->folder, where->name, &status, AT_SYMLINK_NOFOLLOW) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw errno_error("cannot look at " + printable_path(shown(path)), errno);
}

UniqueFd Beneath::open(const std::string& path, int flags, mode_t mode) {
  const Place where = place(path);
  while (true) {
    const int fd = ::openat(where.folder, where.name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd >= 0) return UniqueFd(fd);
    if (errno != EINTR) throw errno_error("cannot open " + printable_path(shown(path)), errno);
  }
}

std::string Beneath::link_target(const std::string& path) {
  const Place where = place(path);
  std::array<char, 4097> buffer;
  const ssize_t size = ::readlinkat(where.folder, where.name, buffer.data(), buffer.size());
  if (size < 0) throw errno_error("cannot read the link " + printable_path(shown(path)), errno);
  return {buffer.data(), static_cast<std::size_t>(size)};
}

void Beneath::forget() {
  last_.reset();
  last_path_.clear();
}

}  // namespace dtrain

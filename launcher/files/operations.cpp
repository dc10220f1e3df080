#include "launcher/files/operations.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/files/file_identity.hpp"

namespace dtrain::sync {
namespace {

using Left = std::optional<std::string>;

constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
constexpr const char* kChanged = "was changed there meanwhile";
constexpr const char* kNoWay = "the folder that it is in is gone, or is a link";

// Whether another path may do: what this file system can keep, what is mounted. Who may not write
// there is denied as it is.
bool is_of_path(int error) {
  switch (error) {
    case EBUSY:
    case EFBIG:
    case EILSEQ:
    case EINVAL:
    case EMLINK:
    case ENAMETOOLONG:
    case EOPNOTSUPP:
    case EROFS:
    case EXDEV:
      return true;
    default:
      return false;
  }
}

Error refused(const Beneath& files, const char* what, const std::string& path, int error) {
  const std::string text = std::string("cannot ") + what + " " + printable_path(files.shown(path));
  if (error == ENOSPC || error == EDQUOT) {
    return Error(ErrorCode::exhausted, text + ": no space is left there");
  }
  Error said = errno_error(text, error);
  return is_of_path(error) ? Error(ErrorCode::denied, said.message()) : said;
}

// 0 or errno. Without `replace`, EEXIST when something is there.
int rename_entry(int from, const char* name, const Beneath::Place& to, bool replace) {
  if (!replace) {
    if (::syscall(SYS_renameat2, from, name, to.folder, to.name, kNoReplace) == 0) return 0;
    if (errno != ENOSYS && errno != EINVAL) return errno;  // old kernels and file systems
  }
  return ::renameat(from, name, to.folder, to.name) == 0 ? 0 : errno;
}

// For a target that has another file system mounted below it: a copy beside the place.
int copy_beside(int stage, const char* name, const Beneath::Place& to, const std::string& beside) {
  ::unlinkat(to.folder, beside.c_str(), 0);
  std::array<char, 4097> target{};
  const ssize_t length = ::readlinkat(stage, name, target.data(), target.size() - 1);
  if (length >= 0) return ::symlinkat(target.data(), to.folder, beside.c_str()) == 0 ? 0 : errno;
  const UniqueFd from(::openat(stage, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!from) return errno;
  const UniqueFd into(
      ::openat(to.folder, beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!into) return errno;
  struct stat status {};
  if (::fstat(from.get(), &status) != 0) return errno;
  std::string buffer(std::size_t{1} << 20, '\0');
  while (true) {
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    for (ssize_t done = 0; done < got;) {
      const ssize_t wrote =
          ::write(into.get(), buffer.data() + done, static_cast<std::size_t>(got - done));
      if (wrote < 0 && errno != EINTR) return errno;
      if (wrote > 0) done += wrote;
    }
  }
  const std::array<timespec, 2> times{status.st_atim, status.st_mtim};
  if (::fchmod(into.get(), status.st_mode & 0777) != 0) return errno;
  return ::futimens(into.get(), times.data()) == 0 ? 0 : errno;
}

Left put(Beneath& files, int stage, const std::string& temporary, const Operation& operation) {
  const std::string number = std::to_string(operation.number);
  struct stat staged {};
  if (stage < 0 || ::fstatat(stage, number.c_str(), &staged, AT_SYMLINK_NOFOLLOW) != 0) {
    return std::nullopt;  // it was done before
  }
  const auto to = files.find(operation.path);
  if (!to) return kNoWay;
  // Two names of one file: rename(2) would leave both.
  struct stat there {};
  if (::fstatat(to->folder, to->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
      there.st_dev == staged.st_dev && there.st_ino == staged.st_ino) {
    return std::nullopt;
  }
  if (!is_as_expected(files, operation.path, operation.expect)) return kChanged;
  const bool replace = operation.expect.what != Expect::What::nothing;
  int error = rename_entry(stage, number.c_str(), *to, replace);
  if (error == EXDEV) {
    const std::string beside = temporary + number;
    error = copy_beside(stage, number.c_str(), *to, beside);
    if (error == 0) error = rename_entry(to->folder, beside.c_str(), *to, replace);
    if (error != 0) {
      ::unlinkat(to->folder, beside.c_str(), 0);
    } else {
      ::unlinkat(stage, number.c_str(), 0);
    }
  }
  if (error == EEXIST || error == EISDIR || error == ENOTDIR) return kChanged;
  if (error != 0) throw refused(files, "put", operation.path, error);
  return std::nullopt;
}

Left hard_link(Beneath& files, const std::string& temporary, const Operation& operation) {
  const auto first = files.status(operation.other);
  if (!first || !S_ISREG(first->st_mode)) return "the file that it is a link of was left";
  const auto there = files.status(operation.path);
  if (there && there->st_dev == first->st_dev && there->st_ino == first->st_ino) {
    return std::nullopt;
  }
  if (!is_as_expected(files, operation.path, operation.expect)) return kChanged;
  const auto from = files.find(operation.other);
  if (!from) return kNoWay;
  // The second look-up forgets the first's folder.
  const UniqueFd from_folder(::fcntl(from->folder, F_DUPFD_CLOEXEC, 3));
  const std::string from_name = from->name;
  const auto to = files.find(operation.path);
  if (!to) return kNoWay;
  const std::string beside = temporary + std::to_string(operation.number);
  ::unlinkat(to->folder, beside.c_str(), 0);
  if (::linkat(from_folder.get(), from_name.c_str(), to->folder, beside.c_str(), 0) != 0) {
    throw refused(files, "link", operation.path, errno);
  }
  const int error =
      rename_entry(to->folder, beside.c_str(), *to, operation.expect.what != Expect::What::nothing);
  if (error == 0) return std::nullopt;
  ::unlinkat(to->folder, beside.c_str(), 0);
  if (error == EEXIST || error == EISDIR) return kChanged;
  throw refused(files, "link", operation.path, error);
}

Left remove_file(Beneath& files, const Operation& operation) {
  const auto there = files.status(operation.path);
  // A folder: this is a repeat, and what comes after the removal was done already.
  if (!there || S_ISDIR(there->st_mode)) return std::nullopt;
  if (!is_as_expected(files, operation.path, operation.expect)) return kChanged;
  const auto place = files.find(operation.path);
  if (place && ::unlinkat(place->folder, place->name, 0) != 0 && errno != ENOENT) {
    throw refused(files, "remove", operation.path, errno);
  }
  return std::nullopt;
}

Left remove_folder(Beneath& files, const Operation& operation) {
  const auto place = files.find(operation.path);
  if (!place) return std::nullopt;
  const bool removed = ::unlinkat(place->folder, place->name, AT_REMOVEDIR) == 0;
  const int error = errno;
  files.forget();
  if (removed || error == ENOENT) return std::nullopt;
  if (error == ENOTEMPTY || error == EEXIST) return "it holds files that are not of a sync";
  if (error == ENOTDIR) return std::nullopt;  // as in remove_file
  throw refused(files, "remove", operation.path, error);
}

Left make_folder(Beneath& files, const Operation& operation) {
  const auto place = files.find(operation.path);
  if (!place) return kNoWay;
  // Ours to write in until all is done; its own mode comes last.
  const mode_t mode = operation.mode | 0700;
  if (::mkdirat(place->folder, place->name, mode) != 0) {
    if (errno != EEXIST) throw refused(files, "make the folder", operation.path, errno);
    const auto there = files.status(operation.path);
    if (!there || !S_ISDIR(there->st_mode)) return kChanged;
    return std::nullopt;
  }
  const auto there = files.status(operation.path);
  if (!there || (there->st_mode & 0777) == mode) return std::nullopt;
  const UniqueFd folder = files.open(operation.path, O_RDONLY | O_DIRECTORY);
  if (::fchmod(folder.get(), mode) != 0) {
    throw refused(files, "set the mode of", operation.path, errno);
  }
  return std::nullopt;
}

// Of a file or a folder. Opened for reading where that is allowed, else by /proc.
Left set_attributes(Beneath& files, const Operation& operation) {
  const bool touch = operation.kind == Operation::Kind::touch;
  const auto there = files.status(operation.path);
  if (!there) return touch ? Left(kChanged) : std::nullopt;
  if (S_ISLNK(there->st_mode)) return kChanged;
  if (touch) {
    const bool done = S_ISREG(there->st_mode) && identity_of(*there).mtime_ns == operation.mtime_ns;
    if (!done && !is_as_expected(files, operation.path, operation.expect)) return kChanged;
  }
  const UniqueFd fd = files.open(operation.path, O_PATH);
  struct stat now {};
  if (::fstat(fd.get(), &now) != 0 || S_ISLNK(now.st_mode)) return kChanged;
  const std::string name = "/proc/self/fd/" + std::to_string(fd.get());
  if ((now.st_mode & 0777) != operation.mode && ::chmod(name.c_str(), operation.mode) != 0) {
    throw refused(files, "set the mode of", operation.path, errno);
  }
  if (touch) {
    const std::array<timespec, 2> times{timespec{0, UTIME_OMIT}, timespec_of(operation.mtime_ns)};
    if (::utimensat(AT_FDCWD, name.c_str(), times.data(), 0) != 0) {
      throw refused(files, "set the time of", operation.path, errno);
    }
  }
  return std::nullopt;
}

}  // namespace

bool is_as_expected(Beneath& files, const std::string& path, const Expect& expect) {
  const auto there = files.status(path);
  if (!there) return expect.what == Expect::What::nothing;
  Expect now = expect_of(*there);
  if (now.what == Expect::What::link && expect.what == Expect::What::link) {
    now.target = files.link_target(path);
  }
  return now == expect;
}

void remove_temporary(Beneath& files, const std::string& temporary, const Operation& operation) {
  if (const auto to = files.find(operation.path)) {
    ::unlinkat(to->folder, (temporary + std::to_string(operation.number)).c_str(), 0);
  }
}

std::optional<std::string> perform(Beneath& files, int stage, const std::string& temporary,
                                   const Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::remove_file:
      return remove_file(files, operation);
    case Operation::Kind::remove_folder:
      return remove_folder(files, operation);
    case Operation::Kind::make_folder:
      return make_folder(files, operation);
    case Operation::Kind::put:
      return put(files, stage, temporary, operation);
    case Operation::Kind::hard_link:
      return hard_link(files, temporary, operation);
    case Operation::Kind::touch:
    case Operation::Kind::set_mode:
      return set_attributes(files, operation);
  }
  return std::nullopt;
}

}  // namespace dtrain::sync

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/store.hpp"

// Folders from trees.
namespace dtrain {
namespace {

constexpr std::size_t kCopyBuffer = std::size_t{256} << 10;
constexpr std::size_t kKernelPiece = std::size_t{64} << 20;

void check_stop(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load()) throw Error(ErrorCode::conflict, "it was given up");
}

[[noreturn]] void damaged_content(const ContentStore& store, const ContentEntry& entry) {
  ::unlink(store.blob(entry.sha256).c_str());
  throw Error(ErrorCode::not_found, "the content of " + printable(entry.path, false) +
                                        " is damaged below " + store.root().string());
}

// A reflink, or the kernel's own copy; false where there is neither, with nothing written.
bool copy_in_kernel(int from, int to, const ContentEntry& entry, const fs::path& path,
                    const std::atomic<bool>* stop) {
  if (::ioctl(to, FICLONE, from) == 0) return true;
  std::uint64_t left = entry.size;
  while (left > 0) {
    check_stop(stop);
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(left, kKernelPiece));
    const ssize_t got = ::copy_file_range(from, nullptr, to, nullptr, piece, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 && left == entry.size) return false;
    if (got < 0) throw errno_error("cannot write " + path.string(), errno);
    if (got == 0) throw Error(ErrorCode::io, "cannot copy all of " + path.string());
    left -= static_cast<std::uint64_t>(got);
  }
  return true;
}

// The bytes of a blob, summed on their way. Large ones are on disk since before they counted, and
// sealed, so the kernel's own copy of them is as good.
void copy_blob(const ContentStore& store, const ContentEntry& entry, const fs::path& to,
               const std::atomic<bool>* stop) {
  UniqueFd from;
  try {
    from = open_file(store.blob(entry.sha256), O_RDONLY | O_NOFOLLOW);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) damaged_content(store, entry);
    throw;
  }
  const UniqueFd out = open_file(to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, entry.mode);
  if (entry.size > kCopyBuffer && store.has(entry.sha256, entry.size) &&
      copy_in_kernel(from.get(), out.get(), entry, to, stop)) {
    return;
  }
  Sha256 sum;
  std::vector<char> buffer(std::min<std::uint64_t>(kCopyBuffer, entry.size + 1));
  std::uint64_t copied = 0;
  while (true) {
    check_stop(stop);
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + store.blob(entry.sha256).string(), errno);
    if (got == 0) break;
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    sum.add(bytes);
    copied += bytes.size();
    while_doing("writing " + to.string(), [&] { write_all(out.get(), bytes); });
  }
  if (copied != entry.size || sum.hex() != entry.sha256) damaged_content(store, entry);
}

// Makes `name` below `folder` from one entry. Entries come sorted, and none lies below a link, so
// nothing is ever written through one.
template <typename MakeFile>
void make_entry(const ContentEntry& entry, const fs::path& folder, fs::path& last_parent,
                MakeFile make_file) {
  const fs::path path = folder / entry.path;
  const fs::path parent = entry.kind == ContentEntry::Kind::folder ? path : path.parent_path();
  if (parent != last_parent) {
    std::error_code failed;
    fs::create_directories(parent, failed);
    if (failed) throw errno_error("cannot make " + parent.string(), failed.value());
    last_parent = parent;
  }
  if (entry.kind == ContentEntry::Kind::link) {
    if (::symlink(entry.target.c_str(), path.c_str()) != 0) {
      throw errno_error("cannot make the link " + path.string(), errno);
    }
  } else if (entry.kind == ContentEntry::Kind::file) {
    make_file(path);
  }
}

// Removes what was begun, unless it was let stand.
struct Begun {
  fs::path folder;
  ~Begun() {
    if (folder.empty()) return;
    try {
      remove_tree(folder);
    } catch (const Error&) {
      // It stays; nothing is taken for whole by its name.
    }
  }
};

bool unspoiled(const ContentStore& store, const ContentTree& tree, const fs::path& folder) {
  for (const ContentEntry& entry : tree.entries) {
    struct stat status {};
    if (::lstat((folder / entry.path).c_str(), &status) != 0) return false;
    if (entry.kind != ContentEntry::Kind::file) continue;
    if (static_cast<std::uint64_t>(status.st_size) != entry.size || status.st_mtim.tv_sec != 1) {
      return false;
    }
  }
  return missing_blobs(store, tree).empty();
}

// Its folder's time of change says so to collections, which look at it under the same lock.
void note_use_of(const ContentStore& store, const fs::path& bundle) {
  std::error_code none;
  if (!fs::exists(bundle, none)) return;
  const ContentLock lock(store, LOCK_SH);
  ::utimensat(AT_FDCWD, bundle.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // gone: made anew
}

}  // namespace

void make_copy(const ContentStore& store, const ContentTree& tree, const fs::path& target,
               const std::atomic<bool>* stop) {
  const fs::path part = target.string() + ".part";
  remove_tree(part);
  make_folders(part);
  Begun begun{part};
  fs::path last_parent = part;
  for (const ContentEntry& entry : tree.entries) {
    check_stop(stop);
    make_entry(entry, part, last_parent,
               [&](const fs::path& path) { copy_blob(store, entry, path, stop); });
  }
  failpoint("bundle.rename.before");
  if (::rename(part.c_str(), target.c_str()) != 0) {
    throw errno_error("cannot rename " + part.string(), errno);
  }
  failpoint("bundle.rename.after");
  begun.folder.clear();
}

void make_bundle(const ContentStore& store, const ContentTree& tree, const std::string& name,
                 const std::atomic<bool>* stop) {
  const fs::path target = store.bundle(name);
  make_folders(target.parent_path());
  note_use_of(store, target);
  if (unspoiled(store, tree, target)) return;
  const fs::path part = target.string() + "." + random_hex(8);
  make_folders(part);
  Begun begun{part};
  fs::path last_parent = part;
  for (const ContentEntry& entry : tree.entries) {
    check_stop(stop);
    make_entry(entry, part, last_parent, [&](const fs::path& path) {
      if (!store.has(entry.sha256, entry.size)) damaged_content(store, entry);
      if (::link(store.blob(entry.sha256).c_str(), path.c_str()) == 0) return;
      ContentEntry copy = entry;
      copy.mode = 0555;
      copy_blob(store, copy, path, stop);
      const UniqueFd fd = open_file(path, O_RDONLY);
      const timespec times[2] = {{0, UTIME_OMIT}, {1, 0}};
      ::futimens(fd.get(), times);
    });
  }
  failpoint("bundle.rename.before");
  // A spoiled one may still be in use: it is moved aside, and its open files live on.
  if (::rename(part.c_str(), target.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      throw errno_error("cannot rename " + part.string(), errno);
    }
    if (unspoiled(store, tree, target)) return;  // another was quicker
    Begun old{target.string() + ".old-" + random_hex(8)};
    if (::rename(target.c_str(), old.folder.c_str()) != 0 ||
        ::rename(part.c_str(), target.c_str()) != 0) {
      throw errno_error("cannot replace " + target.string(), errno);
    }
  }
  failpoint("bundle.rename.after");
  begun.folder.clear();
}

}  // namespace dtrain

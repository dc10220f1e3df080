#include "launcher/files/store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr time_t kWholeStamp = 1;  // time of change of a blob whose sum was right
constexpr std::uint64_t kSyncFrom = std::uint64_t{256} << 10;
constexpr std::size_t kBuffer = std::size_t{256} << 10;

fs::path incoming(const fs::path& root, const std::string& name) {
  return root / "incoming" / name;
}

void check_name(const std::string& sha256) {
  // It becomes part of a path.
  if (!is_sha256(sha256)) {
    throw Error(ErrorCode::invalid, "no SHA-256: " + printable(sha256.substr(0, 80), false));
  }
}

// Seals the blob behind `fd`: read-only for all, executable for whoever links to it, and stamped.
void seal(int fd, const fs::path& path) {
  const std::array<timespec, 2> times{{{0, UTIME_NOW}, {kWholeStamp, 0}}};
  if (::fchmod(fd, 0555) != 0 || ::futimens(fd, times.data()) != 0) {
    throw errno_error("cannot seal " + path.string(), errno);
  }
}

bool sealed(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_mtim.tv_sec == kWholeStamp &&
         status.st_mtim.tv_nsec == 0;
}

// Notes that the blob is in use; false when it is not there any more.
bool note_use(const ContentStore& store, const fs::path& path, const struct stat& status) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto age = now.tv_sec - status.st_atim.tv_sec;
  if (age >= 0 && age < kUseNoted.count()) return true;
  const ContentLock lock(store, LOCK_SH);
  const std::array<timespec, 2> times{{{0, UTIME_NOW}, {0, UTIME_OMIT}}};
  if (::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  throw errno_error("cannot note the use of " + path.string(), errno);
}

Error missing_blob(const std::string& sha256) {
  return Error(ErrorCode::not_found, "the content " + sha256.substr(0, 12) + "… is missing");
}

}  // namespace

fs::path ContentStore::blob(const std::string& sha256) const {
  check_name(sha256);
  return root_ / "blobs" / sha256.substr(0, 2) / sha256;
}

bool ContentStore::has(const std::string& sha256, std::optional<std::uint64_t> size) const {
  const fs::path path = blob(sha256);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return false;
  const bool right_size = !size || static_cast<std::uint64_t>(status.st_size) == *size;
  if (sealed(status) && right_size) return note_use(*this, path, status);
  // Somebody wrote into it, or a power cut took its end.
  try {
    if (right_size && S_ISREG(status.st_mode) && sum_file(path).sha256 == sha256) {
      const UniqueFd fd = open_file(path, O_RDONLY | O_NOFOLLOW);
      seal(fd.get(), path);
      return true;
    }
  } catch (const Error&) {
    // Not readable: as good as missing.
  }
  ::unlink(path.c_str());
  return false;
}

std::uint64_t ContentStore::partial(const std::string& sha256, std::uint64_t size) const {
  check_name(sha256);
  const fs::path path = incoming(root_, sha256);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return 0;
  const auto there = static_cast<std::uint64_t>(status.st_size);
  if (S_ISREG(status.st_mode) && there <= size) return there;
  ::unlink(path.c_str());
  return 0;
}

void ContentStore::put(const std::string& sha256, std::string_view bytes) const {
  if (has(sha256, bytes.size())) return;
  BlobWriter writer(*this, sha256);
  if (writer.offset() <= bytes.size()) writer.add(bytes.substr(writer.offset()));
  writer.finish();
}

std::string ContentStore::read(const std::string& sha256, std::size_t limit) const {
  const fs::path path = blob(sha256);
  const std::optional<std::string> bytes = read_file_if_there(path, limit);
  if (!bytes) throw missing_blob(sha256);
  Sha256 sum;
  sum.add(*bytes);
  if (sum.hex() != sha256) {
    ::unlink(path.c_str());
    throw missing_blob(sha256).while_doing("reading what was damaged there");
  }
  return *bytes;
}

bool ContentStore::adopt(const ContentStore& other, const std::string& sha256) const {
  if (!other.has(sha256)) return false;
  const fs::path path = blob(sha256);
  make_folders(path.parent_path());
  if (::link(other.blob(sha256).c_str(), path.c_str()) == 0 || errno == EEXIST) {
    return has(sha256);
  }
  return false;  // another file system, or one without links
}

ContentLock::ContentLock(const ContentStore& store, int how)
    : fd_(open_file(store.root() / "blobs", O_RDONLY | O_DIRECTORY)) {
  while (::flock(fd_.get(), how) != 0) {
    if (errno != EINTR) throw errno_error("cannot lock " + store.root().string(), errno);
  }
}

// ---- BlobWriter

BlobWriter::BlobWriter(const ContentStore& store, std::string sha256)
    : store_(store), sha256_(std::move(sha256)) {
  check_name(sha256_);
  path_ = incoming(store.root(), sha256_);
  make_folders(path_.parent_path());
  fd_ = open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  struct stat ours {};
  struct stat there {};
  // Ours alone, and still under its name: else somebody else is at it, or has just finished it.
  resumable_ = ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(fd_.get(), &ours) == 0 &&
               ::lstat(path_.c_str(), &there) == 0 && ours.st_ino == there.st_ino;
  if (!resumable_) {
    path_ = incoming(store.root(), sha256_ + "." + random_hex(8));
    fd_ = open_file(path_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    return;
  }
  std::vector<char> buffer(kBuffer);
  while (true) {
    const ssize_t got = ::read(fd_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path_.string(), errno);
    if (got == 0) break;
    sum_.add({buffer.data(), static_cast<std::size_t>(got)});
    offset_ += static_cast<std::uint64_t>(got);
  }
}

BlobWriter::~BlobWriter() {
  if (!done_ && !resumable_) ::unlink(path_.c_str());
}

void BlobWriter::add(std::string_view bytes) {
  while_doing("writing below " + store_.root().string(), [&] { write_all(fd_.get(), bytes); });
  sum_.add(bytes);
  offset_ += bytes.size();
}

void BlobWriter::finish() {
  if (sum_.hex() != sha256_) {
    ::unlink(path_.c_str());
    done_ = true;
    throw Error(ErrorCode::failed,
                "the content " + sha256_.substr(0, 12) + "… arrived damaged: its sum is another");
  }
  if (offset_ >= kSyncFrom && ::fsync(fd_.get()) != 0) {
    throw errno_error("cannot write " + path_.string(), errno);
  }
  const fs::path blob = store_.blob(sha256_);
  make_folders(blob.parent_path());
  failpoint("blob.rename.before");
  if (::rename(path_.c_str(), blob.c_str()) != 0) {
    throw errno_error("cannot rename " + path_.string(), errno);
  }
  done_ = true;
  failpoint("blob.rename.after");
  // Not before: what is in incoming, another one who brings the same must be able to open. Whoever
  // finds it unsealed until then sums it.
  seal(fd_.get(), blob);
}

// ---- Room

void check_room(const fs::path& folder, std::uint64_t wanted, std::uint64_t free) {
  if (wanted <= free) return;
  throw Error(ErrorCode::exhausted, "no room below " + folder.string() + ": " +
                                        human_bytes(wanted) + " wanted, " + human_bytes(free) +
                                        " free")
      .with_hint("free some there, or use another node or root");
}

void check_room(const fs::path& folder, std::uint64_t wanted) {
  if (wanted == 0) return;
  make_folders(folder);
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return;  // not known: the writing will say
  check_room(folder, wanted, static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize);
}

std::vector<MissingBlob> missing_blobs(const ContentStore& store, const ContentTree& tree) {
  std::map<std::string_view, bool> seen;
  std::vector<MissingBlob> missing;
  for (const ContentEntry& entry : tree.entries) {
    if (entry.kind != ContentEntry::Kind::file || !seen.emplace(entry.sha256, true).second)
      continue;
    if (!store.has(entry.sha256, entry.size)) missing.push_back({entry.sha256, entry.size});
  }
  return missing;
}

}  // namespace dtrain

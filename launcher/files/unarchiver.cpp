#include "launcher/files/unarchiver.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/file_identity.hpp"

namespace dtrain::sync {
namespace {

constexpr std::uint64_t kHashedHoles = std::uint64_t{1} << 30;

[[noreturn]] void cannot_write(const fs::path& path, int error) {
  const std::string shown = printable_path(path);
  if (error == ENOSPC || error == EDQUOT) {
    throw Error(ErrorCode::exhausted, "no space is left for " + shown + "; nothing was changed");
  }
  throw errno_error("cannot write " + shown, error);
}

void pwrite_all(int fd, std::string_view bytes, std::uint64_t offset, const fs::path& shown) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) cannot_write(shown, errno);
    offset += static_cast<std::uint64_t>(wrote);
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace

void Unarchiver::run(BoundedQueue<std::string>& blocks) {
  std::string block;
  ArchiveReader reader([&]() -> std::string_view {
    auto next = blocks.pop();
    if (!next) return {};
    block = std::move(*next);
    return std::string_view(block).substr(1);
  });
  while (const auto file = reader.next()) stage(reader, *file);
  // What is behind the archive's end marks.
  while (blocks.pop()) {
  }
  watch(true);
}

void Unarchiver::stage(ArchiveReader& reader, const ArchiveReader::File& file) {
  Mount* mount = file.name.mount < mounts_.size() ? &mounts_[file.name.mount] : nullptr;
  if (mount == nullptr || mount->wanted.count(file.name.entry) == 0 ||
      mount->staged.count(file.name.entry) > 0) {
    throw Error(ErrorCode::invalid, "the archive holds a file that was not asked for");
  }
  const TreeEntry& entry = mount->tree->entries[file.name.entry];
  if (file.size != entry.size) {
    throw Error(ErrorCode::invalid, "the archive holds " + printable(entry.path, false) +
                                        " with another size than was said");
  }
  const fs::path shown = mount->landing->base() / entry.path;
  const std::string number = std::to_string(file.name.entry);
  const UniqueFd fd(::openat(mount->landing->stage(), number.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, entry.mode));
  if (!fd) cannot_write(shown, errno);
  mount->staged[file.name.entry] = write(reader, entry, fd.get(), shown);
  ++progress_.files;
  watch(false);
}

Staged Unarchiver::write(ArchiveReader& reader, const TreeEntry& entry, int fd,
                         const fs::path& shown) {
  Sha256 sum;
  std::uint64_t at = 0;
  std::uint64_t holes = 0;
  while (const auto piece = reader.piece()) {
    holes += piece->offset - at;
    if (holes <= kHashedHoles) add_zeros(sum, piece->offset - at);
    sum.add(piece->bytes);
    pwrite_all(fd, piece->bytes, piece->offset, shown);
    at = piece->offset + piece->bytes.size();
    progress_.bytes += piece->bytes.size();
    watch(false);
  }
  if (at < entry.size) {
    holes += entry.size - at;
    if (holes <= kHashedHoles) add_zeros(sum, entry.size - at);
    if (::ftruncate(fd, static_cast<off_t>(entry.size)) != 0) cannot_write(shown, errno);
  }
  const timespec times[2] = {{0, UTIME_OMIT}, timespec_of(entry.mtime_ns)};
  struct stat status {};
  if (::futimens(fd, times) != 0 || ::fstat(fd, &status) != 0) cannot_write(shown, errno);
  if ((status.st_mode & 07777) != entry.mode && ::fchmod(fd, entry.mode) != 0) {
    cannot_write(shown, errno);
  }
  Staged staged;
  if (holes <= kHashedHoles) staged.sha256 = sum.hex();
  staged.size = entry.size;
  staged.disk_mtime_ns = identity_of(status).mtime_ns;
  return staged;
}

void Unarchiver::add_zeros(Sha256& sum, std::uint64_t count) const {
  while (count > 0) {
    const std::size_t part = std::min<std::uint64_t>(count, zeros_.size());
    sum.add({zeros_.data(), part});
    count -= part;
  }
}

void Unarchiver::watch(bool now) {
  if (!options_.watch) return;
  const auto moment = std::chrono::steady_clock::now();
  if (!now && moment - watched_ < kProgressEvery) return;
  watched_ = moment;
  options_.watch(progress_);
}

}  // namespace dtrain::sync

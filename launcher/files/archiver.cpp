#include "launcher/files/archiver.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

namespace dtrain::sync {
namespace {

constexpr int kReadTries = 3;
constexpr std::uint64_t kSparseFrom = 64 << 10;  // bytes: smaller files are not looked at for holes

// The parts that are data, when there are holes.
std::optional<ArchiveWriter::Extents> holes(int fd, const struct stat& status) {
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < kSparseFrom || static_cast<std::uint64_t>(status.st_blocks) * 512 >= size) {
    return std::nullopt;
  }
  ArchiveWriter::Extents extents;
  off_t at = 0;
  while (at < status.st_size) {
    const off_t data = ::lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // a hole up to the end
    if (data < 0) return std::nullopt;      // a file system that does not say
    const off_t hole = ::lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return std::nullopt;
    const off_t end = std::min<off_t>(hole, status.st_size);
    if (end > data) {
      extents.emplace_back(static_cast<std::uint64_t>(data),
                           static_cast<std::uint64_t>(end - data));
    }
    at = hole;
  }
  if (extents.size() == 1 && extents[0].first == 0 && extents[0].second == size) {
    return std::nullopt;
  }
  return extents;
}

bool is_same(const FileIdentity& now, const FileIdentity& then) {
  return now.device == then.device && now.inode == then.inode && now.size == then.size &&
         now.mtime_ns == then.mtime_ns;
}

bool is_still(int fd, const FileIdentity& then) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && is_same(identity_of(status), then);
}

Error cannot_read(const Source& source, const EntryName& name, int error) {
  return errno_error("cannot read " + printable_path(source.shown(name.entry)), error);
}

}  // namespace

Archiver::Archiver(std::vector<Source>& sources, BoundedQueue<std::string>& blocks,
                   SyncProgress progress, const SyncWatcher& watch)
    : sources_(sources),
      blocks_(blocks),
      progress_(progress),
      watch_(watch),
      buffer_(kBlockSize, '\0'),
      zeros_(kBlockSize, '\0'),
      archive_([this](std::string_view bytes) { take(bytes); }) {
  fresh();
}

void Archiver::run(const std::vector<EntryName>& wanted) {
  for (const EntryName& name : wanted) {
    if (!read(name)) changing_.push_back(name);
    ++progress_.files;
    watch(false);
  }
  archive_.finish();
  if (block_.size() > 1) blocks_.push(std::move(block_));
  blocks_.close();
  watch(true);
}

void Archiver::fresh() {
  block_.clear();
  block_.reserve(kBlockSize + 1);
  block_ += kPlainBlock;
}

void Archiver::take(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kBlockSize + 1 - block_.size());
    block_.append(bytes, 0, part);
    bytes.remove_prefix(part);
    if (block_.size() == kBlockSize + 1) {
      blocks_.push(std::move(block_));
      fresh();
    }
  }
}

bool Archiver::read(const EntryName& name) {
  Source& source = sources_[name.mount];
  const FileIdentity& scanned = source.scan.identities[name.entry];
  for (int attempt = 0; attempt < kReadTries; ++attempt) {
    UniqueFd fd;
    try {
      fd = source.open(name.entry);
    } catch (const Error& error) {
      std::error_code ignored;
      if (!fs::exists(fs::symlink_status(source.shown(name.entry), ignored))) return false;
      throw;
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw cannot_read(source, name, errno);
    if (!S_ISREG(status.st_mode) || !is_same(identity_of(status), scanned)) return false;
    if (scanned.size > kBlockSize) return read_large(source, name, fd.get(), status);
    std::size_t got = 0;
    while (got < scanned.size) {
      const ssize_t part = ::read(fd.get(), buffer_.data() + got, scanned.size - got);
      if (part < 0 && errno == EINTR) continue;
      if (part < 0) throw cannot_read(source, name, errno);
      if (part == 0) break;
      got += static_cast<std::size_t>(part);
    }
    if (got < scanned.size || !is_still(fd.get(), scanned)) continue;
    const auto extents = holes(fd.get(), status);
    archive_.begin({name.mount, name.entry}, scanned.size, extents ? &*extents : nullptr);
    archive_.write({buffer_.data(), got});
    progress_.bytes += got;
    return true;
  }
  return false;
}

bool Archiver::read_large(Source& source, const EntryName& name, int fd,
                          const struct stat& status) {
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const auto extents = holes(fd, status);
  archive_.begin({name.mount, name.entry}, size, extents ? &*extents : nullptr);
  bool whole = true;
  std::uint64_t at = 0;
  const ArchiveWriter::Extents all{{0, size}};
  for (const auto& [offset, length] : extents ? *extents : all) {
    zeros_until(at, offset);
    const std::uint64_t end = offset + length;
    while (at < end) {
      const std::size_t room = std::min<std::uint64_t>(buffer_.size(), end - at);
      const ssize_t got = ::pread(fd, buffer_.data(), room, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw cannot_read(source, name, errno);
      if (got == 0) {  // it was cut; what was announced must be sent all the same
        whole = false;
        zeros_until(at, end);
        break;
      }
      archive_.write({buffer_.data(), static_cast<std::size_t>(got)});
      at += static_cast<std::uint64_t>(got);
      progress_.bytes += static_cast<std::uint64_t>(got);
      watch(false);
    }
  }
  zeros_until(at, size);
  return whole && is_still(fd, identity_of(status));
}

void Archiver::zeros_until(std::uint64_t& at, std::uint64_t end) {
  while (at < end) {
    const std::size_t part = std::min<std::uint64_t>(zeros_.size(), end - at);
    archive_.write({zeros_.data(), part});
    at += part;
  }
}

void Archiver::watch(bool now) {
  if (!watch_) return;
  const auto moment = std::chrono::steady_clock::now();
  if (!now && moment - watched_ < kProgressEvery) return;
  watched_ = moment;
  watch_(progress_);
}

}  // namespace dtrain::sync

#pragma once

#include <cstdint>

#include <sys/stat.h>

namespace dtrain {

// Identity of a file's content without reading it: while all of this is equal, so is the content.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;  // bytes
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

inline std::int64_t nanoseconds(const timespec& time) noexcept {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

inline timespec timespec_of(std::int64_t ns) noexcept {
  timespec time{};
  time.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  time.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  if (time.tv_nsec < 0) {  // before 1970
    time.tv_nsec += 1'000'000'000;
    --time.tv_sec;
  }
  return time;
}

inline FileIdentity identity_of(const struct stat& status) noexcept {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

}  // namespace dtrain

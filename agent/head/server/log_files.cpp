#include "agent/head/server/log_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launcher/core/error.hpp"

namespace dtrain::head {
namespace {

std::size_t read_at(int fd, char* to, std::size_t most, std::uint64_t offset) {
  while (true) {
    const ssize_t got = ::pread(fd, to, most, static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw errno_error("cannot read a log", errno);
  }
}

}  // namespace

LogFiles::File::File(LogFiles& owner, std::string path, UniqueFd fd)
    : owner_(owner), path_(std::move(path)), fd_(std::move(fd)) {}

LogFiles::File::~File() {
  owner_.files_.erase(path_);
}

LogFiles::FilePtr LogFiles::open(const fs::path& path) {
  if (const auto known = files_.find(path.native()); known != files_.end()) {
    return known->second.lock();
  }
  UniqueFd fd;
  try {
    fd = open_file(path, O_RDONLY);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return nullptr;
    throw;
  }
  FilePtr file(new File(*this, path.native(), std::move(fd)));
  files_[path.native()] = file;
  return file;
}

bool LogFiles::room() const {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  return files_.size() <= limit.rlim_cur / 2;
}

std::uint64_t tail_offset(int fd, int lines, std::uint64_t first) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw errno_error("cannot look at a log", errno);
  auto end = static_cast<std::uint64_t>(status.st_size);
  if (lines == 0) return end;
  std::array<char, 65536> buffer;
  int seen = 0;
  bool at_end = true;  // a newline at the very end closes the last line
  while (end > first) {
    const std::uint64_t begin = std::max(first, end - std::min(end, buffer.size()));
    const std::size_t got = read_at(fd, buffer.data(), end - begin, begin);
    if (got == 0) return end;
    for (std::size_t i = got; i-- > 0;) {
      if (buffer[i] == '\n' && !at_end && ++seen == lines) return begin + i + 1;
      at_end = false;
    }
    end = begin;
  }
  return first;
}

}  // namespace dtrain::head

#include "agent/head/server/log_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"

namespace dtrain::head {

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
  constexpr std::uint64_t kBlock = 65536;
  int seen = 0;
  bool at_end = true;  // a newline at the very end closes the last line
  while (end > first) {
    const std::uint64_t begin = std::max(first, end - std::min(end, kBlock));
    const std::string block = read_at(fd, "a log", begin, end - begin);
    if (block.empty()) return end;
    for (std::size_t i = block.size(); i-- > 0;) {
      if (block[i] == '\n' && !at_end && ++seen == lines) return begin + i + 1;
      at_end = false;
    }
    end = begin;
  }
  return first;
}

}  // namespace dtrain::head

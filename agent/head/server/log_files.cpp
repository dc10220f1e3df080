#include "agent/head/server/log_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

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

std::string read_log(const LogFiles::File& file, const fs::path& path, std::uint64_t offset,
                     std::size_t most) {
  // Most reads of most streams find little or nothing: what is queued then takes no more than that.
  thread_local std::vector<char> buffer;
  if (buffer.size() < most) buffer.resize(most);
  try {
    return {buffer.data(), read_at(file.fd(), buffer.data(), most, offset)};
  } catch (Error& error) {
    error.while_doing("reading " + path.string());
    throw;
  }
}

std::uint64_t tail_offset(int fd, int lines) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw errno_error("cannot look at a log", errno);
  auto end = static_cast<std::uint64_t>(status.st_size);
  if (lines == 0) return end;
  std::array<char, 65536> buffer;
  int seen = 0;
  bool first = true;  // a newline at the very end closes the last line
  while (end > 0) {
    const std::uint64_t begin = end > buffer.size() ? end - buffer.size() : 0;
    const std::size_t got = read_at(fd, buffer.data(), end - begin, begin);
    if (got == 0) return end;
    for (std::size_t i = got; i-- > 0;) {
      if (buffer[i] == '\n' && !first && ++seen == lines) return begin + i + 1;
      first = false;
    }
    end = begin;
  }
  return 0;
}

}  // namespace dtrain::head

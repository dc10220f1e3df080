#include "launcher/core/kept_log.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::uint64_t kPart = 16;                        // of the limit are a step
constexpr std::uint64_t kBlock = std::uint64_t{64} << 10;  // no file system's are larger
constexpr std::size_t kNearLine = std::size_t{64} << 10;   // in which a line's end is looked for
constexpr std::uint64_t kBehind = std::uint64_t{1} << 30;  // what no writer does meanwhile
constexpr std::uint64_t kMostOffset = std::uint64_t{1} << 62;

std::uint64_t step_of(std::uint64_t limit) {
  return std::max(limit / kPart, kLeastRelease);
}

// The errno of what went wrong, or 0.
int punch(int fd, std::uint64_t begin, std::uint64_t bytes) {
  int failed = 0;
  do {
    failed = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                         static_cast<off_t>(bytes)) == 0
                 ? 0
                 : errno;
  } while (failed == EINTR);
  return failed;
}

// Whether anything before `end` takes room on the disk.
bool holds_any(int fd, std::uint64_t end) {
  const off_t data = ::lseek(fd, 0, SEEK_DATA);
  return data >= 0 && static_cast<std::uint64_t>(data) < end;
}

// Behind the next end of a line, if one is near and its line may go.
std::uint64_t line_from(int fd, const fs::path& log, std::uint64_t point, std::uint64_t safe) {
  // One byte earlier, so that a line that begins there is found too.
  const std::string near = read_at(fd, log, point - 1, kNearLine);
  const std::size_t end = near.find('\n');
  if (end == std::string::npos || point + end > safe) return point;
  return point + end;
}

}  // namespace

fs::path released_mark(const fs::path& log) {
  return log.string() + ".released";
}

std::uint64_t released_of(const fs::path& log) {
  const fs::path mark = released_mark(log);
  const std::optional<std::string> text = read_file_if_there(mark, 64);
  if (!text) return 0;
  const std::string_view digits = std::string_view(*text).substr(0, text->find('\n'));
  const auto offset = number_from<std::uint64_t>(digits);
  if (!offset || *offset > kMostOffset) {
    throw Error(ErrorCode::invalid, mark.string() + " is damaged: it holds no offset");
  }
  return *offset;
}

void mark_released(const fs::path& log, std::uint64_t offset) {
  write_file_atomic(released_mark(log), std::to_string(offset) + "\n");
}

std::string read_at(int fd, const fs::path& file, std::uint64_t offset, std::size_t most) {
  // What is queued takes no more than what was found.
  thread_local std::vector<char> buffer;
  if (buffer.size() < most) buffer.resize(most);
  ssize_t got = 0;
  do {
    got = ::pread(fd, buffer.data(), most, static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw errno_error("cannot read " + file.string(), errno);
  return {buffer.data(), static_cast<std::size_t>(got)};
}

KeptBytes read_kept(int fd, const fs::path& log, std::uint64_t offset, std::size_t most) {
  while (true) {
    KeptBytes read{offset, read_at(fd, log, offset, most)};
    // A hole reads as NULs: without any, nothing of it was one.
    if (read.bytes.find('\0') == std::string::npos) return read;
    const std::uint64_t released = released_of(log);
    if (released <= offset) return read;
    offset = released;
  }
}

std::uint64_t release_point(std::uint64_t size, std::uint64_t released, std::uint64_t safe,
                            std::uint64_t limit) {
  if (limit == 0 || size < released || size - released <= limit) return released;
  const std::uint64_t step = step_of(limit);
  const std::uint64_t point = std::min(size - (limit - step), safe) / kBlock * kBlock;
  // What is not safe yet may hold it back: it waits for a step of its own.
  return point >= released + step ? point : released;
}

Release hold_to_limit(const fs::path& log, std::uint64_t limit, std::uint64_t safe) {
  UniqueFd fd;
  try {
    fd = open_file(log, O_RDWR | O_NOFOLLOW);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return {};
    throw;
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw errno_error("cannot look at " + log.string(), errno);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (limit == 0 || size <= limit) return {};
  const std::uint64_t released = released_of(log);
  std::uint64_t point = release_point(size, released, safe, limit);
  if (point == released) {
    // Of what is marked, one who was killed then has left what was to go.
    point = released / kBlock * kBlock;
    const bool more_than_limit = static_cast<std::uint64_t>(status.st_blocks) * 512 > limit;
    if (!more_than_limit || !holds_any(fd.get(), point)) return {};
  } else {
    // Tried where nothing is, so that nothing is called released where that cannot be.
    if (const int failed =
            released == 0 ? punch(fd.get(), size / kBlock * kBlock + kBehind, kBlock) : 0;
        failed != 0) {
      return {Release::What::impossible, std::strerror(failed)};
    }
    mark_released(log, line_from(fd.get(), log, point, safe));
  }
  // From the beginning on: what was left goes too.
  if (const int failed = punch(fd.get(), 0, point); failed != 0) {
    return {Release::What::impossible, std::strerror(failed)};
  }
  return {Release::What::some, {}};
}

std::string missing_mark(std::uint64_t bytes, const std::string& reason) {
  return "[dtrain: " + std::to_string(bytes) + " bytes of output are missing here: " + reason + "]";
}

}  // namespace dtrain

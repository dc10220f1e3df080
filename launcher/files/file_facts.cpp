#include "launcher/files/file_facts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

constexpr std::string_view kFirstLine = "dtrain hashes 1";
constexpr std::size_t kFileLimit = std::size_t{256} << 20;
constexpr std::int64_t kKeepDays = 30;
constexpr std::size_t kNamesLimit = 256;
constexpr std::size_t kNameLength = 128;
// A file changed so shortly before it was read may change again without its times showing it.
constexpr std::int64_t kSettled = 1'000'000'000;  // ns

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t today() {
  return now_ns() / 1'000'000'000 / 86400;
}

template <typename Number>
bool read_number(std::string_view& line, Number& value) {
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc{}) return false;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (line.empty() || line.front() != ' ') return false;
  line.remove_prefix(1);
  return true;
}

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '+' || c == '-' || c == '.';
}

}  // namespace

// ---- LibraryNames

void LibraryNames::add(std::string_view bytes) {
  // What stands across two pieces is seen in the joint.
  const std::size_t head = std::min(bytes.size(), kNameLength);
  tail_.append(bytes.substr(0, head));
  look(tail_);
  if (bytes.size() > head) look(bytes);
  if (bytes.size() >= kNameLength) {
    tail_.assign(bytes.substr(bytes.size() - kNameLength));
  } else if (tail_.size() > kNameLength) {
    tail_.erase(0, tail_.size() - kNameLength);
  }
}

void LibraryNames::look(std::string_view bytes) {
  for (std::size_t at = bytes.find(".so"); at != std::string_view::npos;
       at = bytes.find(".so", at + 3)) {
    std::size_t end = at + 3;
    while (end < bytes.size() && (bytes[end] == '.' || (bytes[end] >= '0' && bytes[end] <= '9'))) {
      ++end;
    }
    if (end >= bytes.size() || bytes[end] != '\0') continue;
    std::size_t begin = at;
    while (begin > 0 && at - begin < kNameLength && plain(bytes[begin - 1])) --begin;
    const std::string_view name = bytes.substr(begin, end - begin);
    if (name.size() <= 6 || !name.starts_with("lib") || found_.size() >= kNamesLimit) continue;
    found_.emplace(std::string(name), true);
  }
}

std::vector<std::string> LibraryNames::names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : found_) names.push_back(name);
  return names;
}

// ---- FileFactsCache

FileFactsCache::FileFactsCache(fs::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  std::optional<std::string> text;
  try {
    text = read_file_if_there(file_, kFileLimit);
  } catch (const Error&) {
    return;
  }
  if (!text) return;
  bool first = true;
  std::string_view rest = *text;
  const std::int64_t oldest = today() - kKeepDays;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return;  // torn
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (first && line != kFirstLine) return;
    if (std::exchange(first, false)) continue;
    Known known;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t size = 0;
    std::int64_t modified = 0;
    std::int64_t changed = 0;
    if (!read_number(line, known.used) || !read_number(line, device) || !read_number(line, inode) ||
        !read_number(line, size) || !read_number(line, modified) || !read_number(line, changed) ||
        !is_sha256(line.substr(0, 64))) {
      continue;
    }
    known.facts.sha256 = line.substr(0, 64);
    if (line.size() > 65) known.facts.library_names = split(line.substr(65), ' ');
    if (known.used >= oldest) known_[{device, inode, size, modified, changed}] = std::move(known);
  }
}

FileFactsCache::Key FileFactsCache::key_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

FileFacts FileFactsCache::facts(const fs::path& path, const struct stat& status) {
  const Key key = key_of(status);
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) {
      const std::int64_t day = today();
      changed_ = changed_ || found->second.used != day;
      found->second.used = day;
      return found->second.facts;
    }
  }
  const std::int64_t began = now_ns();
  const UniqueFd fd = open_file(path, O_RDONLY);
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  Sha256 sum;
  LibraryNames names;
  std::uint64_t size = 0;
  bool elf = false;
  std::vector<char> buffer(std::size_t{256} << 10);
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path.string(), errno);
    if (got == 0) break;
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    if (size == 0) elf = bytes.starts_with("\177ELF");
    sum.add(bytes);
    if (elf) names.add(bytes);
    size += bytes.size();
  }
  struct stat after {};
  if (::fstat(fd.get(), &after) != 0 || key_of(after) != key || size != std::get<2>(key)) {
    throw Error(ErrorCode::conflict,
                printable(path.string(), false) + " changed while it was read");
  }
  FileFacts facts{sum.hex(), names.names()};
  const std::lock_guard lock(mutex_);
  bytes_read_ += size;
  if (began - std::max(std::get<3>(key), std::get<4>(key)) >= kSettled) {
    known_[key] = {facts, today()};
    changed_ = true;
  }
  return facts;
}

std::uint64_t FileFactsCache::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

void FileFactsCache::save() {
  const std::lock_guard lock(mutex_);
  if (!changed_ || file_.empty()) return;
  std::string text(kFirstLine);
  text += '\n';
  for (const auto& [key, known] : known_) {
    const auto& [device, inode, size, modified, changed] = key;
    text += std::to_string(known.used) + ' ' + std::to_string(device) + ' ' +
            std::to_string(inode) + ' ' + std::to_string(size) + ' ' + std::to_string(modified) +
            ' ' + std::to_string(changed) + ' ' + known.facts.sha256;
    for (const std::string& name : known.facts.library_names) text += ' ' + name;
    text += '\n';
  }
  try {
    make_folders(file_.parent_path());
    write_file_atomic(file_, text);
    changed_ = false;
  } catch (const Error&) {
    // Everything is read again the next time.
  }
}

}  // namespace dtrain

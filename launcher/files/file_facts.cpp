#include "launcher/files/file_facts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/files/coding.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

constexpr std::string_view kSumsMagic = "dtrain-sums-2\n";
constexpr std::size_t kFileLimit = std::size_t{256} << 20;
constexpr std::size_t kFilesLimit = 200'000;
constexpr std::int64_t kKeepDays = 30;
constexpr std::size_t kNamesLimit = 256;
constexpr std::size_t kNameLength = 128;
constexpr std::int64_t kSettled = 2'000'000'000;  // ns

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t today() {
  return now_ns() / 1'000'000'000 / 86400;
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
  scan(tail_);
  if (bytes.size() > head) scan(bytes);
  if (bytes.size() >= kNameLength) {
    tail_.assign(bytes.substr(bytes.size() - kNameLength));
  } else if (tail_.size() > kNameLength) {
    tail_.erase(0, tail_.size() - kNameLength);
  }
}

void LibraryNames::scan(std::string_view bytes) {
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
  try {
    load();
  } catch (const Error&) {
    known_.clear();
  }
}

void FileFactsCache::load() {
  const std::optional<std::string> text = read_file_if_there(file_, kFileLimit);
  if (!text) return;
  ByteReader in(*text, "the cache of sums");
  if (in.raw(kSumsMagic.size()) != kSumsMagic) return;
  const std::int64_t oldest = today() - kKeepDays;
  while (!in.at_end()) {
    Known known;
    known.identity.device = in.number();
    known.identity.inode = in.number();
    known.identity.size = in.number();
    known.identity.mtime_ns = in.signed_number();
    known.identity.ctime_ns = in.signed_number();
    known.used = in.signed_number();
    known.facts.sha256 = in.text(64);
    if (!is_sha256(known.facts.sha256)) in.damaged("a sum is none");
    for (std::uint64_t names = in.number_up_to(kNamesLimit); names > 0; --names) {
      known.facts.library_names.emplace_back(in.text(kFileLimit));
    }
    if (known.used < oldest) continue;
    const Place place{known.identity.device, known.identity.inode};
    known_[place] = std::move(known);
  }
}

std::optional<FileFacts> FileFactsCache::find(const FileIdentity& identity) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find({identity.device, identity.inode});
  if (found == known_.end() || found->second.identity != identity) return std::nullopt;
  const std::int64_t day = today();
  changed_ = changed_ || found->second.used != day;
  found->second.used = day;
  return found->second.facts;
}

FileFacts FileFactsCache::facts(const fs::path& path, const FileIdentity& identity) {
  if (const auto known = find(identity)) return *known;
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
    if (got < 0) throw errno_error("cannot read " + printable_path(path), errno);
    if (got == 0) break;
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    if (size == 0) elf = bytes.starts_with("\177ELF");
    sum.add(bytes);
    if (elf) names.add(bytes);
    size += bytes.size();
  }
  struct stat after {};
  if (::fstat(fd.get(), &after) != 0 || identity_of(after) != identity || size != identity.size) {
    throw Error(ErrorCode::conflict, printable_path(path) + " changed while it was read");
  }
  FileFacts facts{sum.hex(), names.names()};
  const std::lock_guard lock(mutex_);
  bytes_read_ += size;
  if (began - std::max(identity.mtime_ns, identity.ctime_ns) >= kSettled) {
    known_[{identity.device, identity.inode}] = {identity, facts, today()};
    changed_ = true;
  }
  return facts;
}

std::uint64_t FileFactsCache::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

void FileFactsCache::save() noexcept {
  const std::lock_guard lock(mutex_);
  if (!changed_ || file_.empty()) return;
  try {
    std::vector<const Known*> kept;
    kept.reserve(known_.size());
    for (const auto& [place, known] : known_) kept.push_back(&known);
    if (kept.size() > kFilesLimit) {
      std::nth_element(kept.begin(), kept.begin() + kFilesLimit, kept.end(),
                       [](const Known* a, const Known* b) { return a->used > b->used; });
      kept.resize(kFilesLimit);
    }
    ByteWriter out;
    out.raw(kSumsMagic);
    for (const Known* known : kept) {
      out.number(known->identity.device);
      out.number(known->identity.inode);
      out.number(known->identity.size);
      out.signed_number(known->identity.mtime_ns);
      out.signed_number(known->identity.ctime_ns);
      out.signed_number(known->used);
      out.text(known->facts.sha256);
      out.number(known->facts.library_names.size());
      for (const std::string& name : known->facts.library_names) out.text(name);
    }
    make_folders(file_.parent_path());
    write_file_atomic(file_, out.take());
    changed_ = false;
  } catch (const std::exception&) {
    // Everything is read again the next time.
  }
}

}  // namespace dtrain

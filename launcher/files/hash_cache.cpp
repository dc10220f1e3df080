#include "launcher/files/hash_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/coding.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

constexpr std::string_view kMagic = "dtrain-hashes-1\n";
constexpr std::size_t kLimit = 200'000;
constexpr std::int64_t kSettled = 2'000'000'000;  // nanoseconds

}  // namespace

HashCache::HashCache(fs::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  try {
    const auto text = read_file_if_there(file_);
    if (!text) return;
    ByteReader in(*text, "the cache of sums");
    if (in.raw(kMagic.size()) != kMagic) return;
    while (!in.at_end()) {
      Key key;
      key.device = in.number();
      key.inode = in.number();
      Known known;
      known.size = in.number();
      known.mtime_ns = in.signed_number();
      known.ctime_ns = in.signed_number();
      known.used = in.signed_number();
      known.sha256 = in.text(64);
      if (!is_sha256(known.sha256)) in.damaged("a sum is none");
      known_[key] = std::move(known);
    }
  } catch (const Error&) {
    known_.clear();
  }
}

std::optional<std::string> HashCache::find(const FileIdentity& identity) const {
  const auto found = known_.find({identity.device, identity.inode});
  if (found == known_.end()) return std::nullopt;
  Known& known = found->second;
  if (known.size != identity.size || known.mtime_ns != identity.mtime_ns ||
      known.ctime_ns != identity.ctime_ns) {
    return std::nullopt;
  }
  known.used = ::time(nullptr);
  return known.sha256;
}

void HashCache::put(const FileIdentity& identity, const std::string& sha256) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t moment = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  if (moment - std::max(identity.mtime_ns, identity.ctime_ns) < kSettled) return;
  known_[{identity.device, identity.inode}] = {identity.mtime_ns, identity.ctime_ns, identity.size,
                                               now.tv_sec, sha256};
  dirty_ = true;
}

std::string HashCache::sum(const fs::path& file, const FileIdentity& identity) {
  if (const auto known = find(identity)) return *known;
  const UniqueFd fd = open_file(file, O_RDONLY | O_NOFOLLOW);
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  Sha256 sum;
  std::vector<char> buffer(std::size_t{256} << 10);
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + printable(file.string(), false), errno);
    if (got == 0) break;
    sum.add({buffer.data(), static_cast<std::size_t>(got)});
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || identity_of(status) != identity) {
    throw Error(ErrorCode::conflict, printable(file.string(), false) + " changes while it is read");
  }
  const std::string hex = sum.hex();
  put(identity, hex);
  return hex;
}

void HashCache::save() noexcept {
  if (file_.empty() || !dirty_) return;
  try {
    std::vector<std::pair<Key, const Known*>> kept;
    kept.reserve(known_.size());
    for (const auto& [key, known] : known_) kept.emplace_back(key, &known);
    if (kept.size() > kLimit) {
      std::nth_element(
          kept.begin(), kept.begin() + kLimit, kept.end(),
          [](const auto& a, const auto& b) { return a.second->used > b.second->used; });
      kept.resize(kLimit);
    }
    ByteWriter out;
    out.raw(kMagic);
    for (const auto& [key, known] : kept) {
      out.number(key.device);
      out.number(key.inode);
      out.number(known->size);
      out.signed_number(known->mtime_ns);
      out.signed_number(known->ctime_ns);
      out.signed_number(known->used);
      out.text(known->sha256);
    }
    make_folders(file_.parent_path());
    write_file_atomic(file_, out.take());
    dirty_ = false;
  } catch (const std::exception&) {
    dirty_ = true;  // the next save tries again
  }
}

}  // namespace dtrain

#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "launcher/core/files.hpp"
#include "launcher/files/scan.hpp"

namespace dtrain {

// SHA-256 of files by their identity, so that a content is read once. Kept in a file between runs.
// A file that was changed less than two seconds before it was hashed is not remembered: it could
// change again within the clock's step. One thread.
class HashCache {
 public:
  // Empty: nothing is kept on disk. A cache that cannot be read is an empty one.
  explicit HashCache(fs::path file = {});

  std::optional<std::string> find(const FileIdentity& identity) const;
  void put(const FileIdentity& identity, const std::string& sha256);

  // The file's sum, from the cache or by reading. Throws Error(conflict) when it changes meanwhile
  // or is no longer what `identity` says.
  std::string sum(const fs::path& file, const FileIdentity& identity);

  // Writes what is new; keeps the entries that were used last, 200,000 at most. Never throws: a
  // cache that cannot be kept costs time only.
  void save() noexcept;

 private:
  struct Known {
    std::int64_t mtime_ns = 0;
    std::int64_t ctime_ns = 0;
    std::uint64_t size = 0;
    std::int64_t used = 0;  // seconds since 1970
    std::string sha256;
  };
  struct Key {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return key.inode * 0x9e3779b97f4a7c15ULL ^ key.device;
    }
  };
  fs::path file_;
  bool dirty_ = false;
  mutable std::unordered_map<Key, Known, KeyHash> known_;
};

}  // namespace dtrain

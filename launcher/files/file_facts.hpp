#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/files/file_identity.hpp"

// What files' bytes were, by where and when they were changed last, so that a file is read again
// only after a change. A cache: it may be lost or thrown away at any time.
namespace dtrain {

struct FileFacts {
  std::string sha256;
  // Names like libfoo.so.1 that occur in the bytes: what a library may load by dlopen().
  std::vector<std::string> library_names;
};

// Any thread. A file that was changed less than two seconds before it was read is not remembered:
// it could change again within the clock's step.
class FileFactsCache {
 public:
  // Empty: nothing is kept on disk. A file that cannot be read is as good as none.
  explicit FileFactsCache(fs::path file = {});

  // Reads the file unless it is known. Error(conflict) when it changed while it was read, or is no
  // longer what `identity` says.
  FileFacts facts(const fs::path& path, const FileIdentity& identity);
  // Writes what is new; keeps what was used in the last 30 days, of 200,000 files at most. A cache
  // that cannot be kept costs time only: a failure is not told.
  void save() noexcept;
  std::uint64_t bytes_read() const;  // by facts(), so far

 private:
  struct Known {
    FileIdentity identity;
    FileFacts facts;
    std::int64_t used = 0;  // days since 1970
  };
  // A file that was changed takes the place of what it was.
  struct Place {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const noexcept {
      return place.inode * 0x9e3779b97f4a7c15ULL ^ place.device;
    }
  };

  void load();
  std::optional<FileFacts> find(const FileIdentity& identity);

  fs::path file_;
  mutable std::mutex mutex_;
  std::unordered_map<Place, Known, PlaceHash> known_;
  std::uint64_t bytes_read_ = 0;
  bool changed_ = false;
};

// The names of libraries in some bytes, fed piece by piece: "lib", then plain characters, then
// ".so" and numbers, closed by NUL. At most 256 of them.
class LibraryNames {
 public:
  void add(std::string_view bytes);
  std::vector<std::string> names() const;

 private:
  void scan(std::string_view bytes);

  std::string tail_;
  std::map<std::string, bool> found_;
};

}  // namespace dtrain

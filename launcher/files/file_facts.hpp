#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <sys/stat.h>

#include "launcher/core/files.hpp"

// What files' bytes were, by where and when they were changed last, so that a file is read again
// only after a change. A cache: it may be lost or stale-proof thrown away at any time.
namespace dtrain {

struct FileFacts {
  std::string sha256;
  // Names like libfoo.so.1 that occur in the bytes: what a library may load by dlopen().
  std::vector<std::string> library_names;
};

// Any thread.
class FileFactsCache {
 public:
  // Empty: nothing is kept. A file that cannot be read is as good as none.
  explicit FileFactsCache(fs::path file = {});

  // Reads the file unless it is known. Error(conflict) when it changed while it was read.
  FileFacts facts(const fs::path& path, const struct stat& status);
  // Writes what is new; a failure is no reason to stop, and is not told.
  void save();
  std::uint64_t bytes_read() const;  // by facts(), so far

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;
  struct Known {
    FileFacts facts;
    std::int64_t used = 0;  // days since 1970
  };
  static Key key_of(const struct stat& status);

  fs::path file_;
  mutable std::mutex mutex_;
  std::map<Key, Known> known_;
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
  void look(std::string_view bytes);

  std::string tail_;
  std::map<std::string, bool> found_;
};

}  // namespace dtrain

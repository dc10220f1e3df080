#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The contents of files as one stream of tar (pax), by libarchive. A file's name in it is the
// number of its mount and of its entry in that mount's tree, "0.17": all else about it is in the
// tree, so no path of an archive is ever believed.
namespace dtrain {

struct ArchiveName {
  std::uint32_t mount = 0;
  std::uint32_t entry = 0;

  bool operator==(const ArchiveName&) const = default;
};

class ArchiveWriter {
 public:
  // Gives the archive's bytes, in order and in pieces of any size, to `sink`.
  explicit ArchiveWriter(std::function<void(std::string_view)> sink);
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  // The parts of a file that are data, as offset and length, rising; the rest of `size` is holes.
  using Extents = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  // Begins a file of `size` bytes; with `data`, a sparse one.
  void begin(ArchiveName name, std::uint64_t size, const Extents* data = nullptr);
  // Its bytes, in order, until `size` were given, those of holes too (as zeros).
  void write(std::string_view bytes);
  void finish();

 private:
  static long give(void* archive, void* self, const void* bytes, std::size_t size);
  void check(long result);

  std::function<void(std::string_view)> sink_;
  void* archive_;
  void* entry_;
  std::exception_ptr failure_;
  bool dropped_ = false;  // nothing more is given
};

class ArchiveReader {
 public:
  // `source` gives the archive's next bytes, valid until the next call; empty at the end.
  explicit ArchiveReader(std::function<std::string_view()> source);
  ~ArchiveReader();
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  struct File {
    ArchiveName name;
    std::uint64_t size = 0;
  };
  // The next file. Throws Error(invalid) for anything that ArchiveWriter does not write.
  std::optional<File> next();
  struct Piece {
    std::uint64_t offset = 0;
    std::string_view bytes;  // valid until the next call
  };
  // The next piece of the file's data, offsets rising; what lies between pieces is a hole.
  std::optional<Piece> piece();

 private:
  static long take(void* archive, void* self, const void** bytes);
  [[noreturn]] void damaged(const char* how) const;
  void rethrow();

  std::function<std::string_view()> source_;
  void* archive_;
  std::uint64_t size_ = 0;
  std::uint64_t offset_ = 0;
  std::exception_ptr failure_;
};

}  // namespace dtrain

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "launcher/files/tree.hpp"

// What the receiver of a sync keeps on disk: for each target a record of what it wrote, and, while
// it applies, a journal of what is still to be done. launcher/files/apply.hpp uses them.
namespace dtrain::sync {

// One entry as we wrote it.
struct Written {
  std::string path;
  EntryKind kind = EntryKind::file;
  std::uint32_t mode = 0;          // as the source said
  std::uint64_t size = 0;          // files
  std::int64_t mtime_ns = 0;       // files: the source's
  std::int64_t disk_mtime_ns = 0;  // files: as this file system keeps it
  std::string sha256;              // files: hexadecimal
  std::string target;              // links

  bool operator==(const Written&) const = default;
};

struct Record {
  std::string target;  // absolute path
  bool single = false;
  std::string boot;  // the boot in which it was written
  std::string tree;  // hash of the tree that the target is equal to; empty: to none, quite
  std::vector<std::string> made;  // absolute paths of folders that we made for it, outermost first
  std::vector<Written> entries;   // in no special order

  bool operator==(const Record&) const = default;
};

inline constexpr std::size_t kRecordLimit = std::size_t{2} << 30;  // bytes, of a journal's file too
std::string encode_record(const Record& record);
// Throws Error(invalid) for what is damaged.
Record decode_record(std::string_view bytes);

// What is expected where something is to be put or removed. If it is not so, somebody else was
// there, and it is left.
struct Expect {
  enum class What : std::uint8_t { nothing, file, link, folder };
  What what = What::nothing;
  std::uint64_t size = 0;     // files
  std::int64_t mtime_ns = 0;  // files, on disk
  std::string target;         // links

  bool operator==(const Expect&) const = default;
};
Expect expect_of(const struct stat& status);  // without the target of a link

struct Operation {
  enum class Kind : std::uint8_t {
    remove_file,    // or a link
    remove_folder,  // when it is empty
    make_folder,
    put,        // rename staged `number` to path
    hard_link,  // make path a link of `other`, which is below the target too
    touch,      // set mtime and mode
    set_mode,   // of a folder or file
  };
  Kind kind = Kind::put;
  std::string path;
  std::uint64_t number = 0;
  Expect expect;
  std::uint32_t mode = 0;
  std::int64_t mtime_ns = 0;
  std::string other;

  bool operator==(const Operation&) const = default;
};

struct Journal {
  std::vector<Operation> operations;
  Record after;  // the record when all is done

  bool operator==(const Journal&) const = default;
};
std::string encode_journal(const Journal& journal);
Journal decode_journal(std::string_view bytes);

}  // namespace dtrain::sync

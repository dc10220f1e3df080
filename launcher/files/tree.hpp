#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A tree of files as data: what sync compares and sends. Unlike the lists of manifest.hpp, which
// hold regular files of checkpoints alone, a tree has folders, links and modes, and names of any
// bytes, as a person's folders have.
namespace dtrain {

enum class EntryKind : std::uint8_t { folder = 0, file = 1, link = 2 };

struct TreeEntry {
  // Relative to the tree's own folder: components joined by '/'; never "", ".", ".." or absolute.
  std::string path;
  EntryKind kind = EntryKind::file;
  std::uint32_t mode = 0;     // the lower nine bits; 0 for links
  std::uint64_t size = 0;     // bytes; files only
  std::int64_t mtime_ns = 0;  // since 1970; files only
  std::string target;         // links only; any text
  // A file that is a hard link of an earlier file: that one's index in `entries`. Size and mtime
  // are that one's.
  std::optional<std::uint32_t> same_as;

  bool operator==(const TreeEntry&) const = default;
};

struct Tree {
  // The source is one file (then `entries` is that file under its own name), not a folder.
  bool single = false;
  std::uint32_t mode = 0755;  // of the folder itself
  // Depth first: a folder, then what is in it; names of one folder in byte order.
  std::vector<TreeEntry> entries;

  bool operator==(const Tree&) const = default;
};

struct TreeLimits {
  std::size_t entries = 20'000'000;
  std::size_t depth = 200;    // folders in folders
  std::size_t name = 255;     // bytes of one name
  std::size_t path = 4000;    // bytes
  std::size_t target = 4095;  // bytes of what a link points to
};

// One tree has one encoding: equal trees have equal bytes, and so one hash.
std::string encode_tree(const Tree& tree);
// From outside: throws Error(invalid) for whatever encode_tree does not make, names that are "..",
// have a '/' or a NUL, an entry in no folder of the tree, modes beyond rwxrwxrwx (set-user-id), and
// more than the limits.
Tree decode_tree(std::string_view bytes, const TreeLimits& limits = {});

std::uint64_t total_size(const Tree& tree) noexcept;  // bytes of its files; hard links count once

}  // namespace dtrain

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"

// A folder by content: what lies where, each file named by the SHA-256 of its bytes. A tree's own
// name is the SHA-256 of its text, so that two folders with the same content are one tree, and a
// tree is kept and sent like any other content.
namespace dtrain {

struct ContentEntry {
  enum class Kind : std::uint8_t { file, link, folder };

  std::string path;  // plain components joined by '/', as is_plain_relative_path
  Kind kind = Kind::file;
  std::string sha256;      // of a file
  std::uint64_t size = 0;  // bytes of a file
  unsigned mode = 0644;    // of a file: 0644 or 0755
  std::string target;      // of a link, as it is written there

  bool operator==(const ContentEntry&) const = default;
};

// Folders that hold something need no entry of their own.
struct ContentTree {
  std::vector<ContentEntry> entries;  // sorted by path

  bool operator==(const ContentTree&) const = default;
};

inline constexpr std::size_t kContentTextLimit = std::size_t{256} << 20;  // bytes
inline constexpr std::size_t kContentEntryLimit = 2'000'000;

// The one text of a tree: a JSON list, sorted by path.
std::string to_text(const ContentTree& tree);
// Checks everything, for it may come from anywhere: plain paths, each once, no file or link where
// another entry needs a folder, known modes, sums. Throws Error(invalid).
ContentTree content_tree_from_text(std::string_view text);

std::uint64_t total_size(const ContentTree& tree);  // bytes of its files
std::size_t file_count(const ContentTree& tree);

}  // namespace dtrain

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/files.hpp"

// The files of a folder as a list: path, size, sum.
namespace dtrain {

struct FileEntry {
  std::string path;        // relative to the folder: plain components joined by '/'
  std::uint64_t size = 0;  // bytes
  std::string sha256;      // empty: not computed

  bool operator==(const FileEntry&) const = default;
};

struct FolderLimits {
  std::size_t files = 100000;
  int depth = 32;  // of folders
};

// "a/b": plain components, no "." or "..", not absolute, no NUL or control characters, UTF-8.
bool is_plain_relative_path(std::string_view path) noexcept;

// Every regular file below the folder with its size, sorted by path. Links, sockets, devices, names
// that are not plain, and more than the limits: Error(invalid) naming it. Follows no link.
std::vector<FileEntry> list_files(const fs::path& folder, const FolderLimits& limits = {});

// Reads the files and fills in their sums; a size that changed meanwhile is Error(conflict).
void compute_sums(const fs::path& folder, std::vector<FileEntry>& entries);

// Throws Error(failed) naming the first file that is missing, of another size, or not a regular
// file. With `exact`, also a file that is not in the list.
void verify_sizes(const fs::path& folder, const std::vector<FileEntry>& entries,
                  bool exact = false);

// Also reads everything and compares the sums.
void verify_sums(const fs::path& folder, const std::vector<FileEntry>& entries);

std::uint64_t total_size(const std::vector<FileEntry>& entries);

// [{"path", "size", "sha256"}…]; the reverse checks everything, throws Error(invalid), and refuses
// a path that is not plain or comes twice.
nlohmann::json to_json(const std::vector<FileEntry>& entries);
std::vector<FileEntry> file_entries_from_json(const nlohmann::json& json);

// fsyncs every file and folder of the list, and the folder itself; up to 32 files side by side.
void fsync_tree(const fs::path& folder, const std::vector<FileEntry>& entries);

}  // namespace dtrain

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/files/content_tree.hpp"
#include "launcher/files/file_facts.hpp"

// A folder of the user's as a tree, read once and never written.
namespace dtrain {

struct SnapshotOptions {
  // True for what stays behind; `path` is relative to the folder, '/' between. A folder that is
  // left out is not entered.
  std::function<bool(const std::string& path, bool is_folder)> ignore;
  std::vector<std::string> exclude;       // see ScanOptions
  std::vector<std::string> filter_files;  // see ScanOptions
  // Relative paths that go along whatever these say.
  std::vector<std::string> always;
  // As sync takes it: one file will do, and those that are set-user-id are left out.
  bool as_mount = false;
  std::stop_token stop;  // Error(failed)
};

// What a tree by content does not keep.
struct FileStat {
  unsigned mode = 0;          // the lower nine bits
  std::int64_t mtime_ns = 0;  // since 1970; of files only
};

struct Snapshot {
  ContentTree tree;
  std::map<std::string, fs::path> files;  // by sum: where to read its bytes
  std::vector<std::string> skipped;       // sockets, devices, FIFOs: named, not sent
  // Of a mount's files and folders by path; "" is the folder itself.
  std::map<std::string, FileStat> stats;
  bool single = false;     // of one file, which stands under its own name
  std::uint64_t size = 0;  // bytes, each file counted
};

// Links are kept as links. Throws Error naming a file that cannot be read; Error(conflict) when one
// changes again and again while it is read.
Snapshot take_snapshot(const fs::path& folder, const SnapshotOptions& options,
                       FileFactsCache& cache);

// What is always left out: the stores of version control.
bool is_version_control(const std::string& path, bool is_folder);

}  // namespace dtrain

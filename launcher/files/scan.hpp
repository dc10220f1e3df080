#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/files/tree.hpp"

struct stat;

namespace dtrain {

// Folders of these beginnings are ours for the time of a transfer; never scanned or sent.
inline constexpr std::string_view kStagingPrefix = ".dtrain-sync-";

struct ScanOptions {
  std::vector<std::string> exclude;       // patterns as in .gitignore, relative to the source
  std::vector<std::string> filter_files;  // names of files in each folder that hold such patterns
  TreeLimits limits;
};

// Identity of a file's content without reading it: while all of this is equal, so is the content.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};
FileIdentity identity_of(const struct stat& status) noexcept;

struct LeftOut {
  std::string path;
  std::string reason;  // "a socket", "set-user-id"
};

struct Scan {
  Tree tree;
  std::vector<FileIdentity> identities;  // of each entry; of files only
  // What sync does not carry: sockets, pipes, devices, set-user-id files. Excluded files are not
  // in it.
  std::vector<LeftOut> left_out;
};

// Looks at everything below `source`, a folder, or at the one file that it is; a link as `source`
// is followed, none below it is. Reads no content but filter files. Throws Error(not_found) without
// a source, Error(denied) naming up to ten files and folders that cannot be read.
Scan scan_tree(const fs::path& source, const ScanOptions& options = {});

}  // namespace dtrain

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/files/file_identity.hpp"
#include "launcher/files/tree.hpp"

namespace dtrain {

// Folders of these beginnings are ours for the time of a transfer; never scanned or sent.
inline constexpr std::string_view kStagingPrefix = ".dtrain-sync-";

struct ScanOptions {
  std::vector<std::string> exclude;       // patterns as in .gitignore, relative to the source
  std::vector<std::string> filter_files;  // names of files in each folder that hold such patterns
  // True for what is left out besides; `path` is relative to the source, '/' between.
  std::function<bool(const std::string& path, bool is_folder)> ignore;
  // Relative paths that go along whatever else says, with the folders above them.
  std::vector<std::string> always;
  bool set_user_id = false;  // such files are taken too, as any others
  TreeLimits limits;
};

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
// is followed, none below it is. Of a folder that is left out only what always goes along is looked
// at. Reads no content but filter files. Throws Error(not_found) without a source, Error(denied)
// naming up to ten files and folders that cannot be read.
Scan scan_tree(const fs::path& source, const ScanOptions& options = {});

}  // namespace dtrain

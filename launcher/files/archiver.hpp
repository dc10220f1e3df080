#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/files/archive.hpp"
#include "launcher/files/beneath.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/scan.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/files/sync_wire.hpp"

// Files of scanned folders as an archive in blocks.
namespace dtrain::sync {

struct Source {
  const SyncMount* mount = nullptr;
  Scan scan;
  std::unique_ptr<Beneath> files;  // null for a single file

  fs::path shown(std::uint32_t entry) const {
    return scan.tree.single ? mount->source : mount->source / scan.tree.entries[entry].path;
  }
  UniqueFd open(std::uint32_t entry) {
    if (scan.tree.single) return open_file(mount->source, O_RDONLY);
    return files->open(scan.tree.entries[entry].path, O_RDONLY);
  }
};

// Reads what is wanted into an archive and cuts that into blocks, on a thread of its own.
class Archiver {
 public:
  Archiver(std::vector<Source>& sources, BoundedQueue<std::string>& blocks, SyncProgress progress,
           const SyncWatcher& watch);

  void run(const std::vector<EntryName>& wanted);
  // After the end.
  const std::vector<EntryName>& changing() const noexcept { return changing_; }

 private:
  void fresh();
  void take(std::string_view bytes);
  // False when the file is no longer what was scanned, or changes meanwhile.
  bool read(const EntryName& name);
  bool read_large(Source& source, const EntryName& name, int fd, const struct stat& status);
  void zeros_until(std::uint64_t& at, std::uint64_t end);
  void watch(bool now);

  std::vector<Source>& sources_;
  BoundedQueue<std::string>& blocks_;
  SyncProgress progress_;
  const SyncWatcher& watch_;
  std::chrono::steady_clock::time_point watched_;
  std::string block_;
  std::string buffer_;
  std::string zeros_;
  std::vector<EntryName> changing_;
  ArchiveWriter archive_;
};

}  // namespace dtrain::sync

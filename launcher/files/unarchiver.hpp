#pragma once

#include <chrono>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher/files/archive.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/comparison.hpp"
#include "launcher/files/landing.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/sync.hpp"

namespace dtrain::sync {

// Takes the archive apart into staging folders, on a thread of its own.
class Unarchiver {
 public:
  struct Mount {
    const Tree* tree = nullptr;
    Landing* landing = nullptr;
    std::set<std::uint32_t> wanted;
    std::unordered_map<std::uint32_t, Staged> staged;
  };

  Unarchiver(std::vector<Mount>& mounts, const ReceiveOptions& options, SyncProgress progress)
      : mounts_(mounts), options_(options), progress_(progress), zeros_(64 << 10, '\0') {}

  void run(BoundedQueue<std::string>& blocks);

 private:
  void stage(ArchiveReader& reader, const ArchiveReader::File& file);
  Staged write(ArchiveReader& reader, const TreeEntry& entry, int fd, const fs::path& shown);
  void add_zeros(Sha256& sum, std::uint64_t count) const;
  void watch(bool now);

  std::vector<Mount>& mounts_;
  const ReceiveOptions& options_;
  SyncProgress progress_;
  std::chrono::steady_clock::time_point watched_;
  std::string zeros_;
};

}  // namespace dtrain::sync

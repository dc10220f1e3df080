#include "launcher/files/snapshot.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/stop.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/files/scan.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kDepth = 128;  // folders in folders, the first one counted
constexpr int kSnapshotTries = 5;
constexpr unsigned kThreads = 4;
constexpr std::size_t kFilesPerThread = 256;  // fewer are read by one thread

struct Found {
  ContentEntry entry;
  FileIdentity identity;  // of a file
  fs::path path;          // where it lies
};

std::string how_to_leave_out(const SnapshotOptions& options) {
  return options.as_mount ? "a line of rsync_exclude" : "a line in .dtrainignore";
}

std::map<std::string, FileStat> stats_of(const Tree& tree) {
  std::map<std::string, FileStat> stats;
  if (!tree.single) stats[""] = {tree.mode, 0};
  for (const TreeEntry& entry : tree.entries) {
    if (entry.kind != EntryKind::link) stats[entry.path] = {entry.mode, entry.mtime_ns};
  }
  return stats;
}

// What a scan found, as a tree by content has it. A folder that holds something needs no entry.
std::vector<Found> found_by(Scan& scan, const fs::path& folder, const SnapshotOptions& options) {
  std::vector<TreeEntry>& entries = scan.tree.entries;
  std::vector<Found> all;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    TreeEntry& entry = entries[i];
    if (!is_plain_relative_path(entry.path)) {
      throw Error(ErrorCode::invalid, printable_path(folder / entry.path) +
                                          " has a name that cannot be sent: only "
                                          "plain UTF-8 text can")
          .with_hint("rename it, or leave it out by " + how_to_leave_out(options));
    }
    Found found;
    switch (entry.kind) {
      case EntryKind::folder:
        if (i + 1 < entries.size() && entries[i + 1].path.starts_with(entry.path + "/")) continue;
        found.entry.kind = ContentEntry::Kind::folder;
        found.entry.mode = 0755;
        break;
      case EntryKind::link:
        found.entry.kind = ContentEntry::Kind::link;
        found.entry.mode = 0777;
        found.entry.target = std::move(entry.target);
        break;
      case EntryKind::file:
        found.identity = scan.identities[i];
        found.entry.size = entry.size;
        found.entry.mode = (entry.mode & 0111) != 0 ? 0755 : 0644;
        break;
    }
    found.entry.path = std::move(entry.path);
    all.push_back(std::move(found));
  }
  return all;
}

// The sum of a file that may be written to just now: a few tries, each with its newest identity.
void sum_one(Found& found, FileFactsCache& cache, const SnapshotOptions& options) {
  const fs::path& path = found.path;
  for (int attempt = 1;; ++attempt) {
    try {
      found.entry.sha256 = cache.facts(path, found.identity).sha256;
      found.entry.size = found.identity.size;
      return;
    } catch (Error& error) {
      if (error.code() != ErrorCode::conflict || attempt == kSnapshotTries) {
        if (error.code() == ErrorCode::conflict) {
          error.with_hint("leave it out by " + how_to_leave_out(options));
        }
        throw;
      }
    }
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
      throw errno_error("cannot look at " + printable_path(path), errno);
    }
    if (!S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::conflict, printable_path(path) + " is no file any more");
    }
    found.identity = identity_of(status);
  }
}

void sum_all(std::vector<Found>& all, FileFactsCache& cache, const SnapshotOptions& options) {
  std::uint64_t bytes = 0;
  for (const Found& found : all) bytes += found.entry.size;
  const std::size_t wanted = all.size() / kFilesPerThread + bytes / (std::uint64_t{64} << 20);
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr failure;
  side_by_side(all.size(), std::min<std::size_t>({wanted, kThreads, cores}), [&](std::size_t i) {
    if (failed || all[i].entry.kind != ContentEntry::Kind::file) return;
    try {
      throw_if_stopped(options.stop);
      sum_one(all[i], cache, options);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

bool is_version_control(const std::string& path, bool) {
  constexpr std::array<std::string_view, 4> kStores{{".git", ".hg", ".svn", ".bzr"}};
  const std::size_t slash = path.rfind('/');
  const std::string_view name =
      slash == std::string::npos ? path : std::string_view(path).substr(slash + 1);
  return std::find(kStores.begin(), kStores.end(), name) != kStores.end();
}

Snapshot take_snapshot(const fs::path& folder, const SnapshotOptions& options,
                       FileFactsCache& cache) {
  ScanOptions looking;
  looking.ignore = options.ignore;
  looking.exclude = options.exclude;
  looking.filter_files = options.filter_files;
  looking.always = options.always;
  looking.set_user_id = !options.as_mount;  // a tree by content has no such bits
  looking.limits.depth = kDepth - 1;
  Scan scan = scan_tree(folder, looking);
  if (scan.tree.single && !options.as_mount) {
    throw Error(ErrorCode::invalid, printable_path(folder) + " is no folder");
  }
  Snapshot snapshot;
  snapshot.single = scan.tree.single;
  if (options.as_mount) snapshot.stats = stats_of(scan.tree);
  for (LeftOut& left : scan.left_out) snapshot.skipped.push_back(std::move(left.path));
  std::vector<Found> all = found_by(scan, folder, options);
  for (Found& found : all) {
    found.path = snapshot.single ? fs::canonical(folder) : folder / found.entry.path;
  }
  sum_all(all, cache, options);
  std::sort(all.begin(), all.end(),
            [](const Found& a, const Found& b) { return a.entry.path < b.entry.path; });
  for (Found& found : all) {
    if (found.entry.kind == ContentEntry::Kind::file) {
      snapshot.files.emplace(found.entry.sha256, found.path);
      snapshot.size += found.entry.size;
    }
    snapshot.tree.entries.push_back(std::move(found.entry));
  }
  return snapshot;
}

}  // namespace dtrain

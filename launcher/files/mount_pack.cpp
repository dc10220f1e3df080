#include "launcher/files/mount_pack.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/files/file_identity.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/snapshot.hpp"

namespace dtrain {
namespace {

constexpr const char* kStats = "stats.json";  // {"0/a/b": [mode, mtime_ns], …}

void set_stats(const fs::path& path, unsigned mode, std::optional<std::int64_t> mtime_ns) {
  if (mtime_ns) {
    const std::array<timespec, 2> times{timespec{0, UTIME_OMIT}, timespec_of(*mtime_ns)};
    if (::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) != 0) {
      throw errno_error("cannot set the time of " + path.string(), errno);
    }
  }
  if (::chmod(path.c_str(), mode) != 0) {
    throw errno_error("cannot set the mode of " + path.string(), errno);
  }
}

}  // namespace

MountPack pack_mounts(const std::vector<SyncMount>& mounts, FileFactsCache& cache,
                      const std::stop_token& stop) {
  MountPack pack;
  nlohmann::json stats = nlohmann::json::object();
  for (std::size_t i = 0; i < mounts.size(); ++i) {
    SnapshotOptions options;
    options.exclude = mounts[i].exclude;
    options.filter_files = mounts[i].filter_files;
    options.as_mount = true;
    options.stop = stop;
    Snapshot snapshot = take_snapshot(mounts[i].source, options, cache);
    const std::string below = std::to_string(i) + "/";
    pack.sources.push_back(snapshot.single ? below + snapshot.tree.entries.front().path
                                           : std::to_string(i));
    if (snapshot.tree.entries.empty()) {
      pack.tree.entries.push_back({std::to_string(i), ContentEntry::Kind::folder, "", 0, 0755, ""});
    }
    for (ContentEntry& entry : snapshot.tree.entries) {
      entry.path = below + entry.path;
      pack.tree.entries.push_back(std::move(entry));
    }
    for (const auto& [path, stat] : snapshot.stats) {
      stats[path.empty() ? std::to_string(i) : below + path] = {stat.mode, stat.mtime_ns};
    }
    for (const std::string& path : snapshot.skipped) {
      pack.skipped.push_back((mounts[i].source / path).string());
    }
    pack.files.merge(snapshot.files);
  }
  pack.stats = stats.dump();
  Sha256 sum;
  sum.add(pack.stats);
  pack.stats_sum = sum.hex();
  ContentEntry entry;
  entry.path = kStats;
  entry.sha256 = pack.stats_sum;
  entry.size = pack.stats.size();
  pack.tree.entries.push_back(std::move(entry));
  std::sort(pack.tree.entries.begin(), pack.tree.entries.end(),
            [](const ContentEntry& a, const ContentEntry& b) { return a.path < b.path; });
  return pack;
}

void unpack_mounts(const ContentStore& store, const ContentTree& tree, const fs::path& folder) {
  std::set<std::string> files;
  std::set<std::string> folders;
  for (const ContentEntry& entry : tree.entries) {
    if (entry.kind == ContentEntry::Kind::file) files.insert(entry.path);
    if (entry.kind == ContentEntry::Kind::folder) folders.insert(entry.path);
    for (std::size_t end = entry.path.rfind('/'); end != std::string::npos;
         end = entry.path.rfind('/', end - 1)) {
      if (!folders.insert(entry.path.substr(0, end)).second) break;
    }
  }
  make_copy(store, tree, folder);
  try {
    const auto stats = nlohmann::json::parse(read_file(folder / kStats, kContentTextLimit));
    for (auto each = stats.begin(); each != stats.end(); ++each) {
      const auto mode = each.value().at(0).get<unsigned>() & 0777U;
      if (files.contains(each.key())) {
        set_stats(folder / each.key(), mode, each.value().at(1).get<std::int64_t>());
      } else if (folders.contains(each.key())) {
        set_stats(folder / each.key(), mode | 0700U, std::nullopt);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid,
                "a tree of mounts without their modes: " + std::string(error.what()));
  }
}

}  // namespace dtrain

#include "launcher/files/content_collection.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/ids.hpp"

namespace dtrain {
namespace {

WallTime time_of(const timespec& time) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)));
}

std::optional<struct stat> look(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

class Collector {
 public:
  Collector(const ContentStore& store, const CollectionOptions& options)
      : store_(store),
        options_(options),
        cutoff_(options.gathered -
                std::max<std::chrono::seconds>(options.grace, kAskedContentGrace)),
        partial_cutoff_(options.gathered - std::max<std::chrono::seconds>(options.partial_grace,
                                                                          kAskedContentGrace)) {}

  Collection run() {
    std::error_code none;
    if (fs::exists(store_.root() / "blobs", none)) {  // else nothing was ever whole
      mark();
      bundles();
      blobs();
    }
    partials();
    return result_;
  }

 private:
  void mark() {
    for (const std::string& name : options_.blobs) used_.insert(name);
    for (const std::string& name : options_.trees) {
      used_.insert(name);
      try {
        for (const ContentEntry& entry : store_.tree(name).entries) {
          if (entry.kind == ContentEntry::Kind::file) used_.insert(entry.sha256);
        }
      } catch (const Error& error) {
        // Not there, or damaged: who needs it will have it brought anew.
        if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::invalid) throw;
      }
    }
  }

  // A bundle is made again of its blobs in no time: it goes with its last use.
  void bundles() {
    std::error_code none;
    std::vector<fs::path> old;
    for (const auto& entry : fs::directory_iterator(store_.root() / "bundles", none)) {
      const std::string name = entry.path().filename().string();
      if (!is_sha256(name)) {
        leftovers_.push_back(entry.path());
      } else if (!options_.trees.contains(name)) {
        old.push_back(entry.path());
      }
    }
    for (const fs::path& folder : old) {
      const ContentLock lock(store_, LOCK_EX);
      const auto status = look(folder);
      if (!status || time_of(status->st_mtim) >= cutoff_) continue;
      count_links(folder);
      if (options_.dry_run) continue;
      const fs::path aside = folder.string() + ".old-" + random_hex(8);
      failpoint("prune.bundle.before");
      if (::rename(folder.c_str(), aside.c_str()) != 0) {
        throw errno_error("cannot rename " + folder.string(), errno);
      }
      failpoint("prune.bundle.after");
      remove_tree(aside);
    }
  }

  // What a bundle shares with blobs comes back with those; where there are no links, with it.
  void count_links(const fs::path& folder) {
    std::error_code failed;
    for (fs::recursive_directory_iterator it(folder, failed), end; !failed && it != end;
         it.increment(failed)) {
      const auto status = look(it->path());
      if (!status || !S_ISREG(status->st_mode)) continue;
      if (status->st_nlink == 1) {
        result_.blob_bytes += static_cast<std::uint64_t>(status->st_size);
      } else if (options_.dry_run) {
        ++going_links_[status->st_ino];
      }
    }
  }

  struct Unneeded {
    fs::path path;
    WallTime used;
    std::uint64_t size = 0;
  };

  void blobs() {
    std::vector<Unneeded> unneeded;
    std::error_code none;
    for (const auto& folder : fs::directory_iterator(store_.root() / "blobs", none)) {
      std::error_code gone;
      for (const auto& entry : fs::directory_iterator(folder.path(), gone)) {
        if (used_.contains(entry.path().filename().string())) continue;
        const auto status = look(entry.path());
        if (!status || !S_ISREG(status->st_mode)) continue;
        unneeded.push_back(
            {entry.path(), time_of(status->st_atim), static_cast<std::uint64_t>(status->st_size)});
        result_.unneeded_bytes += unneeded.back().size;
      }
    }
    std::sort(unneeded.begin(), unneeded.end(),
              [](const Unneeded& a, const Unneeded& b) { return a.used < b.used; });
    for (const Unneeded& blob : unneeded) {
      if (result_.unneeded_bytes <= options_.keep || blob.used >= cutoff_) return;
      remove(blob);
    }
  }

  void remove(const Unneeded& blob) {
    // Who has just found it has noted that, under the same lock.
    const ContentLock lock(store_, LOCK_EX);
    const auto status = look(blob.path);
    if (!status || time_of(status->st_atim) >= cutoff_) return;
    failpoint("prune.blob.before");
    if (!options_.dry_run && ::unlink(blob.path.c_str()) != 0) {
      throw errno_error("cannot remove " + blob.path.string(), errno);
    }
    failpoint("prune.blob.after");
    const auto links = going_links_.find(status->st_ino);
    const auto others = status->st_nlink - (links == going_links_.end() ? 0 : links->second);
    ++result_.blobs;
    if (others <= 1) result_.blob_bytes += blob.size;
    result_.unneeded_bytes -= blob.size;
  }

  void partials() {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(store_.root() / "incoming", none)) {
      const auto status = look(entry.path());
      if (!status || time_of(status->st_mtim) >= partial_cutoff_) continue;
      // Whoever is at it holds it.
      UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
      if (fd.get() < 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
      if (!options_.dry_run && ::unlink(entry.path().c_str()) != 0) continue;
      ++result_.partials;
      result_.partial_bytes += static_cast<std::uint64_t>(status->st_size);
    }
    for (const fs::path& folder : leftovers_) {
      const auto status = look(folder);
      if (!status || time_of(status->st_mtim) >= partial_cutoff_) continue;
      ++result_.partials;
      if (!options_.dry_run) remove_tree(folder);
    }
  }

  const ContentStore& store_;
  const CollectionOptions& options_;
  WallTime cutoff_;
  WallTime partial_cutoff_;
  std::unordered_set<std::string> used_;
  std::map<ino_t, nlink_t> going_links_;  // of a dry run: how many of a blob's links would go
  std::vector<fs::path> leftovers_;       // of bundles
  Collection result_;
};

}  // namespace

Collection collect_content(const ContentStore& store, const CollectionOptions& options) {
  return while_doing("collecting content below " + store.root().string(),
                     [&] { return Collector(store, options).run(); });
}

}  // namespace dtrain

#include "launcher/files/snapshot.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"

namespace dtrain {
namespace {

constexpr int kDepth = 128;
constexpr int kTries = 5;
constexpr unsigned kThreads = 4;
constexpr std::size_t kFilesPerThread = 256;  // fewer are read by one thread

struct Found {
  ContentEntry entry;
  struct stat status {};
};

struct Walk {
  const SnapshotOptions& options;
  std::set<std::string> always;  // and the folders above them
  std::vector<Found> found;
  std::vector<std::string> skipped;
};

std::string shown(const fs::path& path) {
  return printable(path.string(), false);
}

void walk(const fs::path& folder, const std::string& prefix, int depth, bool left_out,
          Walk& state) {
  if (depth > kDepth) {
    throw Error(ErrorCode::invalid, shown(folder) + " is too deep: more than 128 folders");
  }
  std::error_code failed;
  fs::directory_iterator files(folder, failed);
  if (failed) throw errno_error("cannot list " + shown(folder), failed.value());
  bool empty = true;
  for (const fs::directory_entry& file : files) {
    const std::string path = prefix + file.path().filename().string();
    struct stat status {};
    if (::lstat(file.path().c_str(), &status) != 0) {
      if (errno == ENOENT) continue;  // gone since it was listed
      throw errno_error("cannot look at " + shown(file.path()), errno);
    }
    const bool is_folder = S_ISDIR(status.st_mode);
    // Below a folder that is left out only what must go along counts.
    const bool out = left_out || (state.options.ignore && state.options.ignore(path, is_folder));
    if (out && !state.always.contains(path)) continue;
    if (!is_plain_relative_path(path)) {
      throw Error(ErrorCode::invalid, shown(file.path()) +
                                          " has a name that cannot be sent: only "
                                          "plain UTF-8 text can")
          .with_hint("rename it, or leave it out by a line in .dtrainignore");
    }
    empty = false;
    if (is_folder) {
      walk(file.path(), path + "/", depth + 1, out, state);
      continue;
    }
    Found found{{}, status};
    found.entry.path = path;
    if (S_ISLNK(status.st_mode)) {
      found.entry.kind = ContentEntry::Kind::link;
      found.entry.mode = 0777;
      found.entry.target = fs::read_symlink(file.path(), failed).string();
      if (failed) throw errno_error("cannot read the link " + shown(file.path()), failed.value());
    } else if (S_ISREG(status.st_mode)) {
      found.entry.size = static_cast<std::uint64_t>(status.st_size);
      found.entry.mode = (status.st_mode & 0111) != 0 ? 0755 : 0644;
    } else {
      state.skipped.push_back(path);
      continue;
    }
    state.found.push_back(std::move(found));
  }
  if (empty && !prefix.empty()) {
    Found found;
    found.entry.path = prefix.substr(0, prefix.size() - 1);
    found.entry.kind = ContentEntry::Kind::folder;
    found.entry.mode = 0755;
    state.found.push_back(std::move(found));
  }
}

// The sum of a file that may be written to just now: a few tries, each with its newest stat.
void sum_one(const fs::path& path, Found& found, FileFactsCache& cache) {
  for (int attempt = 1;; ++attempt) {
    try {
      found.entry.sha256 = cache.facts(path, found.status).sha256;
      found.entry.size = static_cast<std::uint64_t>(found.status.st_size);
      return;
    } catch (Error& error) {
      if (error.code() != ErrorCode::conflict || attempt == kTries) {
        if (error.code() == ErrorCode::conflict) {
          error.with_hint("leave it out by a line in .dtrainignore");
        }
        throw;
      }
    }
    if (::lstat(path.c_str(), &found.status) != 0 || !S_ISREG(found.status.st_mode)) {
      throw errno_error("cannot look at " + shown(path), errno);
    }
  }
}

void sum_all(const fs::path& folder, std::vector<Found>& all, FileFactsCache& cache) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      if (all[i].entry.kind != ContentEntry::Kind::file) continue;
      try {
        sum_one(folder / all[i].entry.path, all[i], cache);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = all.size();
      }
    }
  };
  std::uint64_t bytes = 0;
  for (const Found& found : all) bytes += found.entry.size;
  const std::size_t wanted = all.size() / kFilesPerThread + bytes / (std::uint64_t{64} << 20);
  std::vector<std::thread> helpers;
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  while (helpers.size() + 1 < std::min<std::size_t>({wanted, kThreads, cores})) {
    helpers.emplace_back(work);
  }
  work();
  for (std::thread& helper : helpers) helper.join();
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
  Walk state{options, {}, {}, {}};
  for (fs::path path : options.always) {
    for (; !path.empty() && path != "."; path = path.parent_path()) {
      state.always.insert(path.string());
    }
  }
  walk(folder, "", 1, false, state);
  sum_all(folder, state.found, cache);
  Snapshot snapshot;
  snapshot.skipped = std::move(state.skipped);
  std::sort(state.found.begin(), state.found.end(),
            [](const Found& a, const Found& b) { return a.entry.path < b.entry.path; });
  for (Found& found : state.found) {
    if (found.entry.kind == ContentEntry::Kind::file) {
      snapshot.files.emplace(found.entry.sha256, folder / found.entry.path);
      snapshot.size += found.entry.size;
    }
    snapshot.tree.entries.push_back(std::move(found.entry));
  }
  return snapshot;
}

}  // namespace dtrain

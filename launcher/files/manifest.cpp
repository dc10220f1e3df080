#include "launcher/files/manifest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain {
namespace {

// Bounds what is_plain_relative_path looks at; PATH_MAX of Linux.
constexpr std::size_t kPathLimit = 4096;

// A file system with a journal writes many at once as fast as one.
constexpr std::size_t kSyncedAtOnce = 32;

struct FolderWalk {
  const FolderLimits& limits;
  std::vector<FileEntry> entries;
};

void walk(const fs::path& folder, const std::string& prefix, int depth, FolderWalk& state) {
  if (depth > state.limits.depth) {
    throw Error(ErrorCode::invalid, printable_path(folder) + " is deeper than " +
                                        std::to_string(state.limits.depth) + " folders");
  }
  std::error_code failed;
  fs::directory_iterator files(folder, failed);
  if (failed) throw errno_error("cannot list " + printable_path(folder), failed.value());
  for (const fs::directory_entry& file : files) {
    const std::string path = prefix + file.path().filename().string();
    if (!is_plain_relative_path(path)) {
      throw Error(ErrorCode::invalid,
                  printable_path(file.path()) + " has a name that is not plain UTF-8 text");
    }
    struct stat status {};
    if (::lstat(file.path().c_str(), &status) != 0) {
      throw errno_error("cannot look at " + printable_path(file.path()), errno);
    }
    if (S_ISDIR(status.st_mode)) {
      walk(file.path(), path + "/", depth + 1, state);
    } else if (S_ISREG(status.st_mode)) {
      if (state.entries.size() >= state.limits.files) {
        throw Error(ErrorCode::invalid,
                    "more than " + std::to_string(state.limits.files) + " files");
      }
      state.entries.push_back({path, static_cast<std::uint64_t>(status.st_size), {}});
    } else {
      throw Error(ErrorCode::invalid,
                  printable_path(file.path()) +
                      (S_ISLNK(status.st_mode) ? " is a symbolic link" : " is not a regular file"));
    }
  }
}

// The size of a regular file reached through real folders only; absent for anything else.
std::optional<std::uint64_t> regular_size(const fs::path& folder, const std::string& path) {
  fs::path at = folder;
  const std::vector<std::string> parts = split(path, '/');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    at /= parts[i];
    struct stat status {};
    if (::lstat(at.c_str(), &status) != 0) return std::nullopt;
    const bool last = i + 1 == parts.size();
    if (last && S_ISREG(status.st_mode)) return static_cast<std::uint64_t>(status.st_size);
    if (last || !S_ISDIR(status.st_mode)) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

bool is_plain_relative_path(std::string_view path) noexcept {
  if (path.empty() || path.size() > kPathLimit || !is_utf8(path)) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

std::vector<FileEntry> list_files(const fs::path& folder, const FolderLimits& limits) {
  FolderWalk state{limits, {}};
  walk(folder, "", 1, state);
  std::sort(state.entries.begin(), state.entries.end(),
            [](const FileEntry& a, const FileEntry& b) { return a.path < b.path; });
  return state.entries;
}

void compute_sums(const fs::path& folder, std::vector<FileEntry>& entries) {
  for (FileEntry& entry : entries) {
    const FileSum sum = sum_file(folder / entry.path);
    if (sum.size != entry.size) {
      throw Error(ErrorCode::conflict,
                  printable_path(folder / entry.path) + " changed while it was read");
    }
    entry.sha256 = sum.sha256;
  }
}

void verify_sizes(const fs::path& folder, const std::vector<FileEntry>& entries, bool exact) {
  for (const FileEntry& entry : entries) {
    const std::optional<std::uint64_t> size = regular_size(folder, entry.path);
    if (!size) {
      throw Error(ErrorCode::failed, printable_path(folder / entry.path) + " is missing");
    }
    if (*size != entry.size) {
      throw Error(ErrorCode::failed, printable_path(folder / entry.path) + " has " +
                                         std::to_string(*size) + " bytes, not " +
                                         std::to_string(entry.size));
    }
  }
  if (!exact) return;
  std::set<std::string_view> listed;
  for (const FileEntry& entry : entries) listed.insert(entry.path);
  for (const FileEntry& found : list_files(folder)) {
    if (!listed.contains(found.path)) {
      throw Error(ErrorCode::failed,
                  printable_path(folder / found.path) + " is not in the list of files");
    }
  }
}

void verify_sums(const fs::path& folder, const std::vector<FileEntry>& entries) {
  verify_sizes(folder, entries);
  for (const FileEntry& entry : entries) {
    if (sum_file(folder / entry.path).sha256 != entry.sha256) {
      throw Error(ErrorCode::failed,
                  printable_path(folder / entry.path) + " has other bytes than its sum");
    }
  }
}

std::uint64_t total_size(const std::vector<FileEntry>& entries) {
  std::uint64_t total = 0;
  for (const FileEntry& entry : entries) total += entry.size;
  return total;
}

nlohmann::json to_json(const std::vector<FileEntry>& entries) {
  nlohmann::json list = nlohmann::json::array();
  for (const FileEntry& entry : entries) {
    list.push_back({{"path", entry.path}, {"size", entry.size}, {"sha256", entry.sha256}});
  }
  return list;
}

std::vector<FileEntry> file_entries_from_json(const nlohmann::json& json) {
  const auto wrong = [](const std::string& what) -> Error {
    return Error(ErrorCode::invalid, "the list of files: " + what);
  };
  if (!json.is_array()) throw wrong("it is not a list");
  std::vector<FileEntry> entries;
  std::set<std::string> seen;
  for (const nlohmann::json& item : json) {
    if (!item.is_object()) throw wrong("an entry is not an object");
    const auto path = item.find("path");
    const auto size = item.find("size");
    const auto sum = item.find("sha256");
    if (path == item.end() || !path->is_string() ||
        !is_plain_relative_path(path->get_ref<const std::string&>())) {
      throw wrong("an entry has no plain relative \"path\"");
    }
    FileEntry entry;
    entry.path = path->get<std::string>();
    const std::string name = printable(entry.path, false);
    if (size == item.end() || !size->is_number_integer() ||
        (!size->is_number_unsigned() && size->get<std::int64_t>() < 0)) {
      throw wrong(name + " has no \"size\"");
    }
    entry.size = size->get<std::uint64_t>();
    if (sum == item.end() || !sum->is_string() || !is_sha256(sum->get_ref<const std::string&>())) {
      throw wrong(name + " has no \"sha256\"");
    }
    entry.sha256 = sum->get<std::string>();
    if (!seen.insert(entry.path).second) throw wrong(name + " comes twice");
    entries.push_back(std::move(entry));
  }
  return entries;
}

void fsync_tree(const fs::path& folder, const std::vector<FileEntry>& entries) {
  std::set<fs::path> folders{folder};
  for (const FileEntry& entry : entries) {
    const fs::path file = folder / entry.path;
    for (fs::path up = file.parent_path(); up != folder; up = up.parent_path()) folders.insert(up);
  }
  std::mutex mutex;
  std::optional<Error> failed;
  side_by_side(entries.size(), kSyncedAtOnce, [&](std::size_t i) {
    const fs::path file = folder / entries[i].path;
    try {
      const UniqueFd fd = open_file(file, O_RDONLY | O_NOFOLLOW);
      if (::fsync(fd.get()) != 0) throw errno_error("cannot fsync " + printable_path(file), errno);
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      if (!failed) failed = error;
    }
  });
  if (failed) throw *failed;
  for (const fs::path& each : folders) fsync_folder(each);
}

}  // namespace dtrain

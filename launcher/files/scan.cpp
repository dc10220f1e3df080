#include "launcher/files/scan.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/ignore.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kNamedAtMost = 10;
constexpr off_t kFilterLimit = off_t{4} << 20;

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

class ScanWalk {
 public:
  ScanWalk(fs::path source, const ScanOptions& options)
      : source_(std::move(source)), options_(options), rules_(options.exclude) {
    for (fs::path path : options.always) {
      for (; !path.empty() && path != "."; path = path.parent_path()) {
        always_.insert(path.string());
      }
    }
  }

  Scan run() {
    UniqueFd fd(::open(source_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) throw errno_error("cannot read " + shown(""), errno);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw errno_error("cannot look at " + shown(""), errno);
    if (S_ISREG(status.st_mode)) {
      single(status);
    } else if (S_ISDIR(status.st_mode)) {
      scan_.tree.mode = status.st_mode & 0777;
      folder(std::move(fd), "", 0, false);
    } else {
      throw Error(ErrorCode::invalid, shown("") + " is neither a folder nor a file");
    }
    if (!unreadable_.empty()) refuse();
    return std::move(scan_);
  }

 private:
  std::string shown(const std::string& path) const {
    return printable_path(path.empty() ? source_ : source_ / path);
  }

  void single(const struct stat& status) {
    scan_.tree.single = true;
    fs::path name = source_.filename();
    if (name.empty() || name == "." || name == "..") name = fs::canonical(source_).filename();
    add_file(name.string(), status);
    if (scan_.tree.entries.empty()) {
      throw Error(ErrorCode::denied, shown("") + " is set-user-id: such files are not carried");
    }
  }

  void add(TreeEntry entry, const FileIdentity& identity = {}) {
    if (scan_.tree.entries.size() >= options_.limits.entries) {
      throw Error(ErrorCode::exhausted, shown("") + " holds more than " +
                                            std::to_string(options_.limits.entries) + " files");
    }
    scan_.tree.entries.push_back(std::move(entry));
    scan_.identities.push_back(identity);
  }

  void add_file(const std::string& path, const struct stat& status) {
    if (!options_.set_user_id && (status.st_mode & (S_ISUID | S_ISGID)) != 0) {
      scan_.left_out.push_back({path, "set-user-id or set-group-id"});
      return;
    }
    TreeEntry entry;
    entry.path = path;
    entry.mode = status.st_mode & 0777;
    entry.size = static_cast<std::uint64_t>(status.st_size);
    entry.mtime_ns = nanoseconds(status.st_mtim);
    if (status.st_nlink > 1) {
      const auto index = static_cast<std::uint32_t>(scan_.tree.entries.size());
      const auto [first, fresh] = linked_.try_emplace({status.st_dev, status.st_ino}, index);
      if (!fresh) {
        const TreeEntry& other = scan_.tree.entries[first->second];
        // It may have changed since the first was looked at; then they go as two files.
        if (other.size == entry.size && other.mtime_ns == entry.mtime_ns &&
            other.mode == entry.mode) {
          entry.same_as = first->second;
        }
      }
    }
    add(std::move(entry), identity_of(status));
  }

  // Names in byte order. Nothing when it cannot be read, which is noted.
  std::vector<std::string> names_in(DIR* folder, const std::string& path) {
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* item = ::readdir(folder)) {
      const std::string_view name = item->d_name;
      if (name == "." || name == ".." || name.starts_with(kStagingPrefix)) continue;
      names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) throw errno_error("cannot read the folder " + shown(path), errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  int push_filters(int folder, const std::string& path, const std::vector<std::string>& names) {
    int pushed = 0;
    for (const std::string& filter : options_.filter_files) {
      if (!std::binary_search(names.begin(), names.end(), filter)) continue;
      UniqueFd fd(::openat(folder, filter.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
      struct stat status {};
      if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
      const std::string where = path.empty() ? filter : path + "/" + filter;
      if (status.st_size > kFilterLimit) {
        throw Error(ErrorCode::invalid, shown(where) + " is too large for a list of patterns");
      }
      std::string text(static_cast<std::size_t>(status.st_size), '\0');
      const ssize_t got = ::read(fd.get(), text.data(), text.size());
      if (got < 0) throw errno_error("cannot read " + shown(where), errno);
      text.resize(static_cast<std::size_t>(got));
      rules_.push(IgnoreList(text, path));
      ++pushed;
    }
    return pushed;
  }

  void folder(UniqueFd fd, const std::string& path, std::size_t depth, bool left_out) {
    if (depth > options_.limits.depth) {
      throw Error(ErrorCode::invalid, shown(path) + " is deeper than " +
                                          std::to_string(options_.limits.depth) + " folders");
    }
    const Folder open(::fdopendir(fd.get()));
    if (!open) throw errno_error("cannot read the folder " + shown(path), errno);
    const int here = fd.release();
    const std::vector<std::string> names = names_in(open.get(), path);
    const int pushed = push_filters(here, path, names);
    for (const std::string& name : names) entry(here, path, name, depth, left_out);
    for (int i = 0; i < pushed; ++i) rules_.pop();
  }

  void entry(int folder_fd, const std::string& folder_path, const std::string& name,
             std::size_t depth, bool left_out) {
    const std::string path = folder_path.empty() ? name : folder_path + "/" + name;
    struct stat status {};
    if (::fstatat(folder_fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) return;  // gone since it was listed
      throw errno_error("cannot look at " + shown(path), errno);
    }
    const bool is_folder = S_ISDIR(status.st_mode);
    const bool out = left_out || rules_.ignores(path, is_folder) ||
                     (options_.ignore && options_.ignore(path, is_folder));
    if (out && !always_.contains(path)) return;
    if (path.size() > options_.limits.path) {
      throw Error(ErrorCode::invalid, shown(path) + " is too long a path");
    }
    if (S_ISREG(status.st_mode)) {
      if (::faccessat(folder_fd, name.c_str(), R_OK, AT_EACCESS) != 0) {
        unreadable(path);
        return;
      }
      add_file(path, status);
    } else if (is_folder) {
      UniqueFd below(
          ::openat(folder_fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below) {
        if (errno != ENOENT) unreadable(path);
        return;
      }
      TreeEntry made;
      made.path = path;
      made.kind = EntryKind::folder;
      made.mode = status.st_mode & 0777;
      add(std::move(made));
      folder(std::move(below), path, depth + 1, out);
    } else if (S_ISLNK(status.st_mode)) {
      add_link(folder_fd, name, path);
    } else {
      scan_.left_out.push_back({path, S_ISSOCK(status.st_mode)   ? "a socket"
                                      : S_ISFIFO(status.st_mode) ? "a pipe"
                                                                 : "a device"});
    }
  }

  void add_link(int folder_fd, const std::string& name, const std::string& path) {
    std::array<char, 4096> target;
    const ssize_t size = ::readlinkat(folder_fd, name.c_str(), target.data(), target.size());
    if (size <= 0) return;  // gone, or no longer a link
    TreeEntry link;
    link.path = path;
    link.kind = EntryKind::link;
    link.target.assign(target.data(), static_cast<std::size_t>(size));
    add(std::move(link));
  }

  void unreadable(const std::string& path) {
    if (unreadable_.size() < kNamedAtMost) unreadable_.push_back(shown(path));
    ++unreadable_count_;
  }

  [[noreturn]] void refuse() const {
    std::string text = "cannot read " + join(unreadable_, ", ");
    if (unreadable_count_ > unreadable_.size()) {
      text += " and " + std::to_string(unreadable_count_ - unreadable_.size()) + " more";
    }
    throw Error(ErrorCode::denied, text)
        .with_hint("make them readable, or leave them out with an exclude pattern");
  }

  struct InodeHash {
    std::size_t operator()(const std::pair<dev_t, ino_t>& id) const noexcept {
      return id.second * 0x9e3779b97f4a7c15ULL ^ id.first;
    }
  };

  fs::path source_;
  const ScanOptions& options_;
  IgnoreRules rules_;
  std::unordered_set<std::string> always_;  // and the folders above them
  Scan scan_;
  std::unordered_map<std::pair<dev_t, ino_t>, std::uint32_t, InodeHash> linked_;
  std::vector<std::string> unreadable_;
  std::size_t unreadable_count_ = 0;
};

}  // namespace

Scan scan_tree(const fs::path& source, const ScanOptions& options) {
  return ScanWalk(source, options).run();
}

}  // namespace dtrain

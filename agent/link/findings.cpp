#include "agent/link/findings.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/files/shard.hpp"
#include "launcher/files/stored_checkpoints.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::link {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr int kFewFiles = 100;               // a problem below one in so many
constexpr std::uint64_t kWorthAWord = kGiB;  // of content that could be given back
constexpr auto kRenewalOverdue = 72h;        // agents look each hour
constexpr auto kWatchBack = 3s;
constexpr auto kLook = 20ms;
constexpr auto kSettled = 1min;  // what was written since then may be under way
constexpr std::size_t kMostNamed = 5;

bool nearly_full(const Disk& disk) {
  const std::uint64_t least =
      std::max(std::min(disk.total / 100, 10 * kGiB), std::min(disk.total / 20, 256 * kMiB));
  return disk.total > 0 && disk.free < least;
}

bool getting_full(const Disk& disk) {
  return disk.total > 0 && disk.free < std::min(disk.total / 20, 50 * kGiB);
}

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "0%o", static_cast<unsigned>(mode & 07777));
  return text;
}

// By name: whoever closes a descriptor of the head's database ends the locks that the head holds on
// it.
void make_private(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 ||
      ::fchmodat(AT_FDCWD, path.c_str(), status.st_mode & 07777 & ~mode_t{077},
                 AT_SYMLINK_NOFOLLOW) != 0) {
    throw errno_error("cannot chmod " + printable_path(path), errno);
  }
}

// The steps whose checkpoint is there with every file of its size.
std::set<std::int64_t> committed_steps(const fs::path& checkpoints) {
  std::set<std::int64_t> steps;
  for (const fs::path& entry : entries_of(checkpoints)) {
    if (!checkpoint_number(entry.filename().string())) continue;
    try {
      const nlohmann::json manifest = wire::parse_json(
          read_file(entry / "manifest.json", kShardListLimit), "it", kShardListLimit);
      check_checkpoint_format(manifest, "dtrain-checkpoint");
      verify_sizes(entry, file_entries_from_json(wire::member(manifest, "files")));
      steps.insert(wire::get_int(manifest, "step", 0, INT64_MAX));
    } catch (const Error&) {
      // Not whole: it proves nothing.
    }
  }
  return steps;
}

std::string size_of(const std::vector<Unfinished>& list) {
  std::uint64_t bytes = 0;
  for (const Unfinished& each : list) bytes += each.bytes;
  return human_bytes(bytes);
}

std::string named(const std::vector<Unfinished>& list) {
  std::vector<std::string> names;
  names.reserve(list.size());
  for (const Unfinished& each : list) {
    names.push_back(printable_path(each.path) + " (" + human_bytes(each.bytes) + ")");
  }
  return join_some(names, kMostNamed);
}

}  // namespace

Finding& Findings::problem(std::string kind, std::string what, std::string hint) {
  found.push_back({std::move(kind), "problem", std::move(what), std::move(hint), false, false, {}});
  return found.back();
}

Finding& Findings::note(std::string kind, std::string what, std::string hint) {
  found.push_back({std::move(kind), "note", std::move(what), std::move(hint), false, false, {}});
  return found.back();
}

void Findings::look(const std::string& kind, const std::function<void()>& how) {
  try {
    how();
  } catch (const std::exception& error) {
    problem(kind, std::string("it cannot be looked at: ") + error.what());
  }
}

void fixable_by(Finding& finding, bool fix, const std::function<void()>& how) {
  finding.fixable = true;
  if (!fix) return;
  try {
    how();
    finding.fixed = true;
  } catch (const std::exception& error) {
    finding.error = error.what();
  }
}

std::optional<Disk> look_at_disk(const fs::path& path, const std::string& for_what,
                                 const std::string& hint) {
  struct statvfs room {};
  struct stat status {};
  if (::statvfs(path.c_str(), &room) != 0 || ::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw errno_error("cannot look at " + printable_path(path), errno);
  }
  Disk disk;
  disk.of = printable_path(path) + (for_what.empty() ? "" : " (" + for_what + ")");
  disk.hint = hint;
  disk.total = std::uint64_t{room.f_blocks} * room.f_frsize;
  disk.free = std::uint64_t{room.f_bavail} * room.f_frsize;
  disk.files = room.f_files;
  disk.files_free = room.f_favail;
  disk.read_only = (room.f_flag & ST_RDONLY) != 0;
  disk.device = status.st_dev;
  return disk;
}

bool runs_low(const Disk& disk) {
  return nearly_full(disk) || getting_full(disk);
}

void judge_disks(std::vector<Disk> disks, Findings& findings) {
  std::vector<Disk> each;
  for (Disk& disk : disks) {
    const auto same = std::find_if(each.begin(), each.end(), [&](const Disk& other) {
      return other.device == disk.device && other.read_only == disk.read_only;
    });
    if (same == each.end()) {
      each.push_back(std::move(disk));
    } else {
      same->of += ", " + disk.of;
    }
  }
  for (const Disk& disk : each) {
    const std::string room =
        disk.of + ": " + human_bytes(disk.free) + " free of " + human_bytes(disk.total);
    if (disk.read_only) {
      findings.problem("disk", disk.of + ": the file system is read-only",
                       "look for the disk's errors (dmesg), then mount it anew");
    } else if (nearly_full(disk)) {
      findings.problem("disk", room, disk.hint);
    } else if (disk.files > 0 && disk.files_free < disk.files / kFewFiles) {
      findings.problem("disk",
                       disk.of + ": room for " + std::to_string(disk.files_free) +
                           " more files (inodes) of " + std::to_string(disk.files),
                       "remove small files there; " + disk.hint);
    } else if (getting_full(disk)) {
      findings.note("disk", room, disk.hint);
    } else {
      findings.looked.push_back(room);
    }
  }
}

void judge_content(const Disk& disk, const std::function<wire::Collected(bool dry_run)>& collect,
                   bool fix, Findings& findings) {
  if (!runs_low(disk)) return;
  const auto bytes_of = [](const wire::Collected& answer) {
    if (answer.error) throw Error(*answer.error);
    std::uint64_t bytes = 0;
    for (const wire::Collected::Item& item : answer.items) bytes += item.bytes;
    return bytes;
  };
  findings.look("content", [&] {
    const std::uint64_t bytes = bytes_of(collect(true));
    if (bytes < kWorthAWord) return;
    Finding& finding = findings.note(
        "content",
        human_bytes(bytes) + " of jobs' files that no job needs are on a disk that fills",
        "dtrain prune");
    fixable_by(finding, fix, [&] { bytes_of(collect(false)); });
  });
}

void check_private(const std::vector<fs::path>& paths, bool fix, Findings& findings) {
  std::size_t well = 0;
  for (const fs::path& path : paths) {
    struct stat status {};
    const std::string name = printable_path(path);
    if (::lstat(path.c_str(), &status) != 0) {
      if (errno != ENOENT) {
        findings.problem("permissions", errno_error("cannot look at " + name, errno).what());
      }
      continue;
    }
    if (status.st_uid != ::geteuid()) {
      findings.problem(
          "permissions",
          name + " belongs to user " + std::to_string(status.st_uid) + ", and dtrain runs as " +
              std::to_string(::geteuid()),
          "as root: chown -R " + std::to_string(::geteuid()) + " " + shell_quote(path.string()));
    } else if (!S_ISLNK(status.st_mode) && (status.st_mode & 077) != 0) {
      const mode_t wanted = status.st_mode & 07777 & ~mode_t{077};
      Finding& finding =
          findings.problem("permissions",
                           name + " is open to other users: its mode is " + octal(status.st_mode) +
                               ", not " + octal(wanted),
                           "chmod " + octal(wanted) + " " + shell_quote(path.string()));
      fixable_by(finding, fix, [&] { make_private(path); });
    } else {
      ++well;
    }
  }
  if (well > 0) {
    findings.looked.push_back("permissions: " + std::to_string(well) +
                              " files and folders are this user's alone");
  }
}

void judge_certificate(const std::string& of, const std::string& certificate_pem, WallTime now,
                       Findings& findings) {
  try {
    const WallTime end = wire::expires(certificate_pem);
    if (wire::renewal_due(certificate_pem, now - kRenewalOverdue)) {
      findings.problem("state",
                       of + " ends " + rfc3339(end) + ", and has not been made anew by itself",
                       "its log says why; `dtrain up` makes it anew");
    } else {
      findings.looked.push_back(of + " is good until " + rfc3339(end));
    }
  } catch (const Error& error) {
    findings.problem("state", of + " cannot be read: " + error.what(), "`dtrain up` makes it anew");
  }
}

void check_watch(Findings& findings) {
  const char* root = std::getenv(kWatchRoot);
  if (root == nullptr || *root != '/') return;
  const auto until = std::chrono::steady_clock::now() + kWatchBack;
  while (!living_watch(root)) {
    if (std::chrono::steady_clock::now() >= until) {
      findings.problem("state",
                       std::string("the watch in ") + printable_path(root) +
                           " does not run: an agent that dies is not started again",
                       "`dtrain up` starts it");
      return;
    }
    std::this_thread::sleep_for(kLook);
  }
  findings.looked.emplace_back("its watch runs");
}

std::vector<Unfinished> unfinished_checkpoints(const JobId& job, const fs::path& storage,
                                               WallTime now) {
  std::vector<Unfinished> found;
  std::optional<std::set<std::int64_t>> committed;
  const fs::path checkpoints = storage / "checkpoints";
  for (const fs::path& entry : entries_of(checkpoints / ".tmp")) {
    int attempt = 0;
    long long step = 0;
    const std::string name = entry.filename().string();
    // What is being deleted has another name.
    if (std::sscanf(name.c_str(), "attempt-%d-step-%lld", &attempt, &step) != 2) continue;
    struct stat status {};
    if (::lstat(entry.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
    if (now - WallTime(std::chrono::seconds(status.st_mtime)) < kSettled) continue;
    Unfinished each{job, entry, folder_bytes(entry), false};
    if (each.bytes == 0) continue;
    if (!committed) committed = committed_steps(checkpoints);
    each.committed = committed->contains(step);
    found.push_back(std::move(each));
  }
  return found;
}

void judge_unfinished(const std::vector<Unfinished>& unfinished, bool fix, Findings& findings) {
  std::vector<Unfinished> worthless;
  std::vector<Unfinished> kept;
  for (const Unfinished& each : unfinished) (each.committed ? worthless : kept).push_back(each);
  if (!worthless.empty()) {
    Finding& finding = findings.note(
        "checkpoints", size_of(worthless) +
                           " are left of writing checkpoints that were committed, by jobs that are "
                           "over: " +
                           named(worthless));
    fixable_by(finding, fix, [&] {
      for (const Unfinished& each : worthless) remove_tree(each.path);
    });
    finding.hint = "dtrain doctor --fix";
  }
  if (!kept.empty()) {
    findings.note("checkpoints",
                  size_of(kept) +
                      " are of checkpoints that jobs that are over never committed: " + named(kept),
                  "nobody resumes from them: copy what you want, then `dtrain rm JOB`");
  }
}

}  // namespace dtrain::link

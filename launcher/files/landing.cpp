#include "launcher/files/landing.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/operations.hpp"
#include "launcher/files/scan.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::sync {
namespace {

// Left free beside what is to be written: for folders, records and somebody else.
constexpr std::uint64_t kSpare = std::uint64_t{1} << 20;

std::string text_of(const fs::path& path) {
  return printable_path(path);
}

// The nearest folder at or above `path` that exists.
fs::path existing_above(fs::path path) {
  std::error_code failed;
  while (!fs::exists(path, failed) && path.has_parent_path() && path != path.parent_path()) {
    path = path.parent_path();
  }
  return path;
}

dev_t device_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_dev : 0;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string record_key(const fs::path& target, bool single, const fs::path& home) {
  // A home on NFS is one for many machines, and so are its records; what lies elsewhere may be each
  // machine's own.
  const bool with_home = device_of(existing_above(target)) == device_of(home);
  Sha256 sum;
  sum.add(single ? "file " : "folder ");
  if (!with_home) sum.add(host_name() + " ");
  sum.add(target.string());
  return sum.hex().substr(0, 16);
}

Landing::Landing(const Offer& offer, const fs::path& target, const ReceiveOptions& options)
    : options_(options), single_(offer.single) {
  find_target(offer, target);
  key_ = record_key(target_, single_, options_.home);
  stage_name_ = std::string(kStagingPrefix) + key_;
}

void Landing::open(bool look_only) {
  make_folders(options_.state);
  lock_ = FileLock::wait(options_.state / (key_ + ".lock"));
  open_base();
  load();
  if (!look_only) recover();
}

Landing::~Landing() {
  // What a journal speaks of stays until it is done: a repeat will finish it. Without the lock what
  // is there is another's.
  std::error_code failed;
  if (!lock_ || journal_ || fs::exists(journal_file(), failed)) return;
  try {
    remove_stage();
    if (early_) ::unlink(record_file().c_str());
  } catch (const Error&) {  // the next sync of this target removes it
  }
  stage_.reset();
  files_.reset();
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) ::rmdir(folder->c_str());
}

void Landing::find_target(const Offer& offer, const fs::path& target) {
  std::error_code failed;
  fs::path whole = target;
  const bool as_folder = !target.has_filename();  // "x/"
  if (single_ && (as_folder || fs::is_directory(target, failed))) whole = target / offer.name;
  whole = whole.lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (single_) {
    name_ = whole.filename().string();
    base_ = fs::weakly_canonical(whole.parent_path(), failed);
    if (failed) base_ = whole.parent_path();
    target_ = base_ / name_;
  } else {
    base_ = fs::weakly_canonical(whole, failed);
    if (failed) base_ = whole;
    target_ = base_;
  }
}

void Landing::open_base() {
  struct stat status {};
  if (::stat(base_.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    throw errno_error("cannot look at " + text_of(base_), errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    throw Error(ErrorCode::conflict, text_of(base_) + " is there, and is not a folder");
  }
  files_ = std::make_unique<Beneath>(base_);
  if (options_.without_openat2) files_->without_openat2();
}

void Landing::load() {
  const auto bytes = read_file_if_there(record_file(), kRecordLimit);
  if (!bytes) return;
  try {
    record_ = decode_record(*bytes);
  } catch (const Error&) {
    // Then nothing here counts as ours, which loses no file of anybody.
    record_ = Record();
  }
  if (record_.target != target_) record_ = Record();
  other_boot_ = !record_.boot.empty() && record_.boot != boot_id();
}

void Landing::recover() {
  const auto bytes = read_file_if_there(journal_file(), kRecordLimit);
  if (!bytes) {
    remove_stage();
    return;
  }
  Journal journal = decode_journal(*bytes);
  if (files_) {
    if (journal.after.boot != boot_id()) drop_unsafe(journal);
    stage_.reset(::openat(files_->fd(), stage_name_.c_str(),
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    run(journal);
    refused_.clear();  // what is still wanted is tried again, and told then
    record_ = journal.after;
    other_boot_ = record_.boot != boot_id();
  } else {
    ::unlink(journal_file().c_str());  // the whole target was removed meanwhile
  }
}

// The machine went down after the journal was written: what is staged may not have reached the
// disk, then it is as good as not sent.
void Landing::drop_unsafe(Journal& journal) {
  std::map<std::string_view, const Written*> wanted;
  for (const Written& entry : journal.after.entries) {
    if (entry.kind == EntryKind::file) wanted.emplace(entry.path, &entry);
  }
  std::set<std::string> dropped;
  for (const Operation& operation : journal.operations) {
    if (operation.kind != Operation::Kind::put) continue;
    const auto entry = wanted.find(operation.path);
    if (entry == wanted.end()) continue;
    const fs::path staged = base_ / stage_name_ / std::to_string(operation.number);
    std::error_code failed;
    if (!fs::exists(fs::symlink_status(staged, failed))) continue;
    if (sum_file(staged).sha256 != entry->second->sha256) dropped.insert(operation.path);
  }
  if (dropped.empty()) return;
  const auto is_dropped = [&](const auto& item) { return dropped.count(item.path) > 0; };
  std::erase_if(journal.operations, is_dropped);
  std::erase_if(journal.after.entries, is_dropped);
  for (const Written& before : record_.entries) {
    if (is_dropped(before)) journal.after.entries.push_back(before);
  }
  journal.after.tree.clear();
}

void Landing::remove_stage() {
  stage_.reset();
  if (files_ && files_->status(stage_name_)) remove_tree(base_ / stage_name_);
}

bool Landing::is_intact() {
  if (!files_ || other_boot_) return false;
  for (const Written& entry : record_.entries) {
    const auto there = files_->status(entry.path);
    if (!there) return false;
    switch (entry.kind) {
      case EntryKind::folder:
        if (!S_ISDIR(there->st_mode)) return false;
        break;
      case EntryKind::file:
        if (!S_ISREG(there->st_mode) || identity_of(*there).mtime_ns != entry.disk_mtime_ns ||
            static_cast<std::uint64_t>(there->st_size) != entry.size ||
            (there->st_mode & 0777) != entry.mode) {
          return false;
        }
        break;
      case EntryKind::link:
        if (!S_ISLNK(there->st_mode) || files_->link_target(entry.path) != entry.target) {
          return false;
        }
        break;
    }
  }
  return true;
}

void Landing::make_base(std::uint32_t mode) {
  std::vector<fs::path> missing;
  for (fs::path folder = base_; !fs::exists(folder); folder = folder.parent_path()) {
    if (fs::is_symlink(folder)) {
      throw Error(ErrorCode::conflict, text_of(folder) + " is a link that leads nowhere");
    }
    missing.push_back(folder);
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw errno_error("cannot make the folder " + text_of(*folder), errno);
    }
    made_.push_back(folder->string());
  }
  if (!single_ && !missing.empty() && ::chmod(base_.c_str(), mode | 0700) != 0) {
    throw errno_error("cannot set the mode of " + text_of(base_), errno);
  }
}

void Landing::begin(std::uint64_t bytes, std::uint32_t mode) {
  struct statvfs space {};
  if (::statvfs(existing_above(base_).c_str(), &space) == 0) {
    const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
    if (bytes > 0 && bytes + kSpare > free) {
      throw Error(ErrorCode::exhausted, text_of(target_) + " needs " + human_bytes(bytes) +
                                            ", but only " + human_bytes(free) + " are free there");
    }
  }
  if (!files_) {
    make_base(mode);
    open_base();
    if (!files_) throw Error(ErrorCode::conflict, text_of(base_) + " was removed meanwhile");
  }
  if (record_.target.empty()) {
    // Whoever removes what syncs wrote finds by it what a crash leaves of a target's first.
    Record early;
    early.target = target_.string();
    early.single = single_;
    early.boot = boot_id();
    early.made = made_;
    save(early);
    early_ = true;
  }
  if (::mkdirat(files_->fd(), stage_name_.c_str(), 0700) != 0) {
    throw errno_error("cannot make a folder in " + text_of(base_), errno);
  }
  stage_.reset(
      ::openat(files_->fd(), stage_name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!stage_) throw errno_error("cannot open a folder in " + text_of(base_), errno);
}

fs::path Landing::record_file() const {
  return options_.state / (key_ + ".record");
}

fs::path Landing::journal_file() const {
  return options_.state / (key_ + ".journal");
}

void Landing::save(const Record& record) {
  write_file_atomic(record_file(), encode_record(record));
}

void Landing::commit(Journal journal) {
  journal.after.target = target_.string();
  journal.after.single = single_;
  journal.after.boot = boot_id();
  journal.after.made = record_.made;
  for (const std::string& folder : made_) journal.after.made.push_back(folder);
  if (!journal.operations.empty()) {
    hook("journal");
    write_file_atomic(journal_file(), encode_journal(journal));
  }
  journal_ = std::move(journal);
}

std::vector<SyncNote> Landing::apply() {
  Journal& journal = *journal_;
  std::vector<SyncNote> left;
  if (!journal.operations.empty()) {
    left = run(journal);
  } else {
    if (journal.after != record_) save(journal.after);
    remove_stage();
  }
  return left;
}

void Landing::throw_if_refused() const {
  if (refused_.empty()) return;
  std::string message = refused_.front();
  if (refused_.size() > 1) {
    message += "; " + std::to_string(refused_.size() - 1) + " more could not be done";
  }
  throw Error(ErrorCode::denied, message)
      .with_hint(
          "all else is done; what cannot be put there may be left out by an exclude pattern");
}

std::vector<SyncNote> Landing::run(Journal& journal) {
  std::vector<SyncNote> left;
  std::set<std::string> lost;
  std::set<std::string> refused;
  std::set<std::string> touched;
  const std::string temporary = stage_name_ + "-";
  // Much may have been moved since it was compared.
  files_->forget();
  for (const Operation& operation : journal.operations) {
    hook("operation");
    std::optional<std::string> reason;
    try {
      reason = perform(*files_, stage_.get(), temporary, operation);
    } catch (const Error& error) {
      // A journal comes to its end all the same: else it would stand before all later syncs.
      if (error.code() != ErrorCode::denied) throw;
      refused_.push_back(error.message());
      refused.insert(operation.path);
      lost.insert(operation.path);
      continue;
    }
    if (!reason) {
      if (operation.kind == Operation::Kind::touch) touched.insert(operation.path);
      continue;
    }
    left.push_back({operation.path, *reason});
    lost.insert(operation.path);
  }
  // File systems keep times in steps of their own.
  for (Written& entry : journal.after.entries) {
    if (touched.count(entry.path) == 0) continue;
    if (const auto there = files_->status(entry.path)) {
      entry.disk_mtime_ns = identity_of(*there).mtime_ns;
    }
  }
  if (!lost.empty()) {
    std::erase_if(journal.after.entries,
                  [&](const Written& entry) { return lost.count(entry.path) > 0; });
    // What is still there is ours as it was.
    for (const Written& before : record_.entries) {
      if (refused.count(before.path) > 0) journal.after.entries.push_back(before);
    }
    journal.after.tree.clear();
  }
  hook("record");
  save(journal.after);
  hook("end");
  remove_stage();
  hook("end");
  const fs::path file = journal_file();
  if (::unlink(file.c_str()) != 0 && errno != ENOENT) {
    throw errno_error("cannot remove " + file.string(), errno);
  }
  return left;
}

}  // namespace dtrain::sync

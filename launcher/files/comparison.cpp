#include "launcher/files/comparison.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/files/scan.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::sync {
namespace {

constexpr const char* kNotOurs = "is there, and is not of a sync";
constexpr const char* kWasChanged = "was changed there";

}  // namespace

Comparison::Comparison(const Tree& tree, Landing& landing, const Offer& offer)
    : tree_(tree), landing_(landing), offer_(offer), files_(landing.files()) {
  known_.reserve(landing.record().entries.size());
  for (const Written& entry : landing.record().entries) known_[entry.path] = &entry;
  items_.resize(tree.entries.size());
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    if (!tree.entries[i].same_as) compare(i);
  }
  find_removals();
  if (questions_.empty()) link_later_names();
}

const Written* Comparison::known(const std::string& path) const {
  const auto found = known_.find(path);
  return found == known_.end() ? nullptr : found->second;
}

// True when what is on disk is what we wrote, or what a crash of the machine made of it.
bool Comparison::is_unchanged(const Written& entry, const struct stat& there) {
  switch (entry.kind) {
    case EntryKind::folder:
      return S_ISDIR(there.st_mode);
    case EntryKind::link:
      return S_ISLNK(there.st_mode) && files_->link_target(entry.path) == entry.target;
    case EntryKind::file:
      break;
  }
  if (!S_ISREG(there.st_mode)) return false;
  if (identity_of(there).mtime_ns != entry.disk_mtime_ns) return false;
  return landing_.other_boot() || static_cast<std::uint64_t>(there.st_size) == entry.size;
}

void Comparison::leave(Item& item, const char* reason) {
  item.action = Action::left;
  item.reason = reason;
}

void Comparison::compare(std::uint32_t index) {
  const TreeEntry& entry = tree_.entries[index];
  Item& item = items_[index];
  item.known = known(entry.path);
  if (!blocked_.empty() && entry.path.starts_with(blocked_)) {
    item.action = Action::below;
    return;
  }
  blocked_.clear();
  if (entry.path.starts_with(kStagingPrefix)) {
    throw Error(ErrorCode::invalid, "a file of the source has a name that sync itself uses");
  }
  std::optional<struct stat> there;
  if (missing_.empty() || !entry.path.starts_with(missing_)) {
    missing_.clear();
    if (files_ != nullptr) there = files_->status(entry.path);
  }
  if (there) item.expect = expect_of(*there);
  if (item.expect.what == Expect::What::link) {
    item.expect.target = files_->link_target(entry.path);
  }
  const struct stat* status = there ? &*there : nullptr;
  switch (entry.kind) {
    case EntryKind::folder:
      compare_folder(index, status);
      break;
    case EntryKind::link:
      compare_link(index, status);
      break;
    case EntryKind::file:
      compare_file(index, status);
      break;
  }
}

void Comparison::compare_folder(std::uint32_t index, const struct stat* there) {
  const TreeEntry& entry = tree_.entries[index];
  Item& item = items_[index];
  if (there != nullptr && S_ISDIR(there->st_mode)) {
    if (item.known == nullptr || item.known->kind != EntryKind::folder) {
      item.action = Action::foreign;
    } else {
      item.action = item.known->mode == entry.mode ? Action::same : Action::mode;
    }
    return;
  }
  item.action = Action::make_folder;
  if (there != nullptr) {
    const bool ours = item.known != nullptr && is_unchanged(*item.known, *there);
    if (!ours && !(offer_.overwrite && (S_ISREG(there->st_mode) || S_ISLNK(there->st_mode)))) {
      leave(item, item.known != nullptr ? kWasChanged : kNotOurs);
      blocked_ = entry.path + "/";
      return;
    }
    item.remove_first = true;
  }
  missing_ = entry.path + "/";
}

void Comparison::compare_link(std::uint32_t index, const struct stat* there) {
  const TreeEntry& entry = tree_.entries[index];
  Item& item = items_[index];
  item.action = Action::make_link;
  if (there == nullptr) return;
  if (S_ISLNK(there->st_mode) && item.expect.target == entry.target) {
    item.action = item.known != nullptr ? Action::same : Action::foreign;
    return;
  }
  if (S_ISDIR(there->st_mode)) {
    item.remove_first = only_ours(entry.path);
    if (!item.remove_first) leave(item, "is a folder there, with files that are not of a sync");
    return;
  }
  const bool ours = item.known != nullptr && is_unchanged(*item.known, *there);
  if (!ours && !offer_.overwrite) leave(item, item.known != nullptr ? kWasChanged : kNotOurs);
}

void Comparison::compare_file(std::uint32_t index, const struct stat* there) {
  const TreeEntry& entry = tree_.entries[index];
  Item& item = items_[index];
  item.action = Action::want;
  if (there == nullptr) return;
  if (S_ISDIR(there->st_mode)) {
    item.remove_first = only_ours(entry.path);
    if (!item.remove_first) leave(item, "is a folder there, with files that are not of a sync");
    return;
  }
  const Written* known = item.known;
  const bool regular = S_ISREG(there->st_mode);
  const bool same_size = regular && static_cast<std::uint64_t>(there->st_size) == entry.size;
  const bool ours = known != nullptr && is_unchanged(*known, *there);
  item.same_mode = (there->st_mode & 0777) == entry.mode;
  if (ours && known->kind == EntryKind::file) {
    const bool as_written = static_cast<std::uint64_t>(there->st_size) == known->size;
    // After a crash of the machine the content itself must be looked at.
    const bool whole = as_written && (!landing_.other_boot() || known->sha256.empty() ||
                                      sum_file(files_->shown(entry.path)).sha256 == known->sha256);
    if (!whole || known->size != entry.size) return;
    if (known->mtime_ns == entry.mtime_ns) {
      item.action = item.same_mode ? Action::same : Action::mode;
      return;
    }
    if (known->sha256.empty()) return;
    item.action = Action::ask;
    item.replaceable = true;
    questions_.push_back(index);
    return;
  }
  if (ours) return;  // a link of ours: replaced
  if (!regular && !S_ISLNK(there->st_mode)) {
    leave(item, kNotOurs);
    return;
  }
  item.replaceable = offer_.overwrite;
  item.reason = known != nullptr ? kWasChanged : kNotOurs;
  if (same_size) {
    item.action = Action::ask;
    questions_.push_back(index);
  } else if (!offer_.overwrite) {
    leave(item, item.reason);
  }
}

void Comparison::answer(const std::vector<std::string>& sums) {
  if (sums.size() != questions_.size()) {
    throw Error(ErrorCode::invalid, "the other side answers with another number of sums");
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TreeEntry& entry = tree_.entries[questions_[i]];
    Item& item = items_[questions_[i]];
    const bool ours = item.replaceable && !item.reason[0];
    std::string there;
    if (ours) {
      there = item.known->sha256;
    } else if (!sums[i].empty()) {
      try {
        there = sum_file(files_->shown(entry.path)).sha256;
      } catch (const Error&) {  // it cannot be read: then it is not known to be equal
      }
    }
    if (!sums[i].empty() && sums[i] == there) {
      // A file of ours that somebody made equal to the source is ours again.
      if (item.known != nullptr) {
        item.action = Action::touch;
        touched_sums_[questions_[i]] = there;
      } else if (item.same_mode) {
        item.action = Action::foreign;
      } else if (item.replaceable) {
        item.action = Action::mode;
      } else {
        leave(item, "has another mode there");
      }
    } else if (item.replaceable) {
      item.action = Action::want;
    } else {
      leave(item, item.reason);
    }
  }
  link_later_names();
}

// Hard links, once it is known what becomes of the files that they are links of.
void Comparison::link_later_names() {
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const TreeEntry& entry = tree_.entries[i];
    if (!entry.same_as) continue;
    compare(i);
    Item& item = items_[i];
    if (item.action == Action::ask) questions_.pop_back();
    if (item.action == Action::left || item.action == Action::below) continue;
    const Item& first_name = items_[*entry.same_as];
    const Action first = first_name.action;
    if (first == Action::left || first == Action::below || first_name.is_foreign()) {
      // Nothing of ours to be linked to: a file of its own.
      if (item.action == Action::ask && !item.replaceable) {
        leave(item, item.reason);
      } else if (item.action == Action::ask) {
        item.action = Action::want;
      }
      continue;
    }
    if (item.action == Action::ask && !item.replaceable) {
      leave(item, item.reason);
      continue;
    }
    if (item.action == Action::same || item.action == Action::mode) {
      const std::string& other = tree_.entries[*entry.same_as].path;
      const auto one = files_->status(entry.path);
      const auto two = files_->status(other);
      const bool kept = first == Action::same || first == Action::mode;
      if (kept && one && two && one->st_dev == two->st_dev && one->st_ino == two->st_ino) continue;
    }
    item.action = Action::hard_link;
  }
}

// True when everything in this folder of ours was written by us and is as it was.
bool Comparison::only_ours(const std::string& path) {
  const Written* folder = known(path);
  if (folder == nullptr || folder->kind != EntryKind::folder) return false;
  std::error_code failed;
  std::vector<std::string> waiting{path};
  while (!waiting.empty()) {
    const std::string here = std::move(waiting.back());
    waiting.pop_back();
    if (!files_->status(here)) return false;
    fs::directory_iterator items(files_->shown(here), failed);
    if (failed) return false;
    for (const fs::directory_entry& item : items) {
      const std::string below = here + "/" + item.path().filename().string();
      const Written* entry = known(below);
      const auto there = files_->status(below);
      if (entry == nullptr || !there || !is_unchanged(*entry, *there)) return false;
      if (entry->kind == EntryKind::folder) waiting.push_back(below);
    }
  }
  return true;
}

void Comparison::find_removals() {
  std::set<std::string_view> in_source;
  for (const TreeEntry& entry : tree_.entries) in_source.insert(entry.path);
  std::vector<const Written*> gone;
  for (const Written& entry : landing_.record().entries) {
    if (in_source.count(entry.path) == 0) gone.push_back(&entry);
  }
  // What is deeper goes first.
  std::sort(gone.begin(), gone.end(),
            [](const Written* a, const Written* b) { return a->path > b->path; });
  for (const Written* entry : gone) {
    const auto there = files_ != nullptr ? files_->status(entry->path) : std::nullopt;
    if (!there) continue;
    if (!offer_.remove) {
      kept_.push_back(entry);
      continue;
    }
    if (!is_unchanged(*entry, *there)) {
      left_.push_back({entry->path, "was changed there, and is no longer in the source"});
      continue;
    }
    Operation operation;
    operation.kind = entry->kind == EntryKind::folder ? Operation::Kind::remove_folder
                                                      : Operation::Kind::remove_file;
    operation.path = entry->path;
    operation.expect = expect_of(*there);
    operation.expect.target = entry->target;
    removals_.push_back(std::move(operation));
  }
}

}  // namespace dtrain::sync

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

constexpr std::size_t kListed = 1000;
constexpr const char* kNotOurs = "is there, and is not of a sync";
constexpr const char* kWasChanged = "was changed there";

void list(std::vector<std::string>& paths, const std::string& path) {
  if (paths.size() < kListed) paths.push_back(path);
}

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
  if (ours && known->kind == EntryKind::file) {
    const bool as_written = static_cast<std::uint64_t>(there->st_size) == known->size;
    // After a crash of the machine the content itself must be looked at.
    const bool whole = as_written && (!landing_.other_boot() || known->sha256.empty() ||
                                      sum_file(files_->shown(entry.path)).sha256 == known->sha256);
    if (!whole || known->size != entry.size) return;
    if (known->mtime_ns == entry.mtime_ns) {
      item.action = known->mode == entry.mode ? Action::same : Action::mode;
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
      item.action = ours || item.known != nullptr ? Action::touch : Action::foreign;
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
    const Action first = items_[*entry.same_as].action;
    if (first == Action::left || first == Action::below || first == Action::foreign) {
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

std::vector<std::uint32_t> Comparison::wanted() const {
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    if (items_[i].action == Action::want) wanted.push_back(i);
  }
  return wanted;
}

std::vector<std::uint32_t> Comparison::links() const {
  std::vector<std::uint32_t> links;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    if (items_[i].action == Action::make_link) links.push_back(i);
  }
  return links;
}

Written Comparison::written(const TreeEntry& entry) {
  Written made;
  made.path = entry.path;
  made.kind = entry.kind;
  made.mode = entry.mode;
  made.size = entry.size;
  made.mtime_ns = entry.mtime_ns;
  made.disk_mtime_ns = entry.mtime_ns;
  made.target = entry.target;
  return made;
}

Journal Comparison::journal(const std::unordered_map<std::uint32_t, Staged>& staged) const {
  Journal journal;
  std::vector<Operation> before;  // room is made
  std::vector<Operation> folders;
  std::vector<Operation> puts;
  std::vector<Operation> attributes;
  std::vector<Operation> modes;
  std::unordered_map<std::uint32_t, const Written*> linked_to;
  bool whole = left_.empty() && kept_.empty();
  std::vector<Written>& after = journal.after.entries;
  after.reserve(items_.size() + kept_.size());  // linked_to holds addresses
  std::set<std::string> removed_first;

  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const TreeEntry& entry = tree_.entries[i];
    const Item& item = items_[i];
    Operation operation;
    operation.path = entry.path;
    operation.number = i;
    operation.expect = item.expect;
    operation.mode = entry.mode;
    operation.mtime_ns = entry.mtime_ns;
    Written now = written(entry);
    if (item.known != nullptr && entry.kind == EntryKind::file) {
      now.sha256 = item.known->sha256;
      now.disk_mtime_ns = item.known->disk_mtime_ns;
    }
    const auto make_room = [&] {
      if (!item.remove_first) return;
      if (item.expect.what == Expect::What::folder) {
        remove_below(entry.path, before);
        removed_first.insert(entry.path + "/");
      } else {
        Operation removal = operation;
        removal.kind = Operation::Kind::remove_file;
        before.push_back(std::move(removal));
      }
      operation.expect = Expect();
    };
    switch (item.action) {
      case Action::same:
        break;
      case Action::foreign:
        // Nobody says when somebody else's file changes: next time it is looked at again.
        if (entry.kind != EntryKind::folder) whole = false;
        continue;
      case Action::ask:
      case Action::left:
      case Action::below:
        whole = false;
        // Should it become again what we wrote, it is ours again.
        if (item.known != nullptr) after.push_back(*item.known);
        continue;
      case Action::make_folder:
        make_room();
        operation.kind = Operation::Kind::make_folder;
        folders.push_back(operation);
        if ((entry.mode & 0700) != 0700) {
          operation.kind = Operation::Kind::set_mode;
          modes.push_back(operation);
        }
        break;
      case Action::make_link:
        make_room();
        operation.kind = Operation::Kind::put;
        puts.push_back(operation);
        break;
      case Action::want: {
        const auto found = staged.find(i);
        if (found == staged.end()) {  // it was changing while it was read
          whole = false;
          if (item.known != nullptr) after.push_back(*item.known);
          continue;
        }
        make_room();
        operation.kind = Operation::Kind::put;
        puts.push_back(operation);
        now.sha256 = found->second.sha256;
        now.disk_mtime_ns = found->second.disk_mtime_ns;
        break;
      }
      case Action::hard_link: {
        const auto first = linked_to.find(*entry.same_as);
        if (first == linked_to.end()) {
          whole = false;
          if (item.known != nullptr) after.push_back(*item.known);
          continue;
        }
        make_room();
        operation.kind = Operation::Kind::hard_link;
        operation.other = tree_.entries[*entry.same_as].path;
        attributes.push_back(operation);
        now.sha256 = first->second->sha256;
        now.disk_mtime_ns = first->second->disk_mtime_ns;
        break;
      }
      case Action::touch:
        operation.kind = Operation::Kind::touch;
        attributes.push_back(operation);
        now.disk_mtime_ns = entry.mtime_ns;
        break;
      case Action::mode:
        operation.kind = Operation::Kind::set_mode;
        (entry.kind == EntryKind::folder ? modes : attributes).push_back(operation);
        break;
    }
    if (entry.kind == EntryKind::folder && item.action != Action::make_folder &&
        (item.known->mode & 0700) != 0700) {
      // A folder of ours that we may not write in: open while we work, then as it was.
      operation.kind = Operation::Kind::set_mode;
      if (item.action == Action::same) modes.push_back(operation);
      operation.mode = entry.mode | 0700;
      before.insert(before.begin(), operation);
    }
    after.push_back(std::move(now));
    linked_to[i] = &after.back();
  }
  for (const Written* entry : kept_) after.push_back(*entry);
  // Inner folders get their modes first: an outer one may shut us out.
  std::reverse(modes.begin(), modes.end());
  const auto done_already = [&](const Operation& removal) {
    for (const std::string& folder : removed_first) {
      if (removal.path.starts_with(folder)) return true;
    }
    return false;
  };
  for (auto* part : {&before, &folders, &puts, &attributes}) {
    std::move(part->begin(), part->end(), std::back_inserter(journal.operations));
  }
  for (const Operation& removal : removals_) {
    if (!done_already(removal)) journal.operations.push_back(removal);
  }
  std::move(modes.begin(), modes.end(), std::back_inserter(journal.operations));
  const bool only_modes =
      journal.operations.size() == 2 * modes.size() &&
      std::all_of(journal.operations.begin(), journal.operations.end(),
                  [](const Operation& o) { return o.kind == Operation::Kind::set_mode; });
  if (only_modes && std::none_of(items_.begin(), items_.end(),
                                 [](const Item& item) { return item.action == Action::mode; })) {
    journal.operations.clear();  // opened and shut for nothing
  }
  if (whole) journal.after.tree = offer_.tree;
  return journal;
}

void Comparison::remove_below(const std::string& path, std::vector<Operation>& operations) const {
  std::vector<const Written*> inside;
  for (const auto& [name, entry] : known_) {
    if (name == path || name.starts_with(path + "/")) inside.push_back(entry);
  }
  std::sort(inside.begin(), inside.end(),
            [](const Written* a, const Written* b) { return a->path > b->path; });
  for (const Written* entry : inside) {
    Operation operation;
    operation.path = entry->path;
    if (entry->kind == EntryKind::folder) {
      operation.kind = Operation::Kind::remove_folder;
    } else {
      operation.kind = Operation::Kind::remove_file;
      operation.expect.what =
          entry->kind == EntryKind::link ? Expect::What::link : Expect::What::file;
      operation.expect.target = entry->target;
      if (entry->kind == EntryKind::file) {
        operation.expect.size = entry->size;
        operation.expect.mtime_ns = entry->disk_mtime_ns;
      }
    }
    operations.push_back(std::move(operation));
  }
}

MountOutcome Comparison::outcome() const {
  MountOutcome outcome;
  outcome.target = landing_.target().string();
  outcome.entries = tree_.entries.size();
  outcome.left = left_;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const TreeEntry& entry = tree_.entries[i];
    switch (items_[i].action) {
      case Action::want:
        ++outcome.files;
        outcome.bytes += entry.size;
        list(outcome.sent_paths, entry.path);
        break;
      case Action::make_folder:
      case Action::make_link:
      case Action::hard_link:
        ++outcome.made;
        break;
      case Action::touch:
      case Action::mode:
        ++outcome.touched;
        break;
      case Action::left:
        outcome.left.push_back({entry.path, items_[i].reason});
        break;
      case Action::same:
      case Action::foreign:
      case Action::ask:
      case Action::below:
        break;
    }
  }
  for (const Operation& removal : removals_) {
    ++outcome.removed;
    list(outcome.removed_paths, removal.path);
  }
  outcome.left_count = outcome.left.size();
  if (outcome.left.size() > kListed) outcome.left.resize(kListed);
  return outcome;
}

}  // namespace dtrain::sync

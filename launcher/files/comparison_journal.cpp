#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "launcher/files/comparison.hpp"

// What a comparison comes to: what is to be sent, what is to be done and in which order, what is
// told of it.
namespace dtrain::sync {
namespace {

constexpr std::size_t kListed = 1000;

void list(std::vector<std::string>& paths, const std::string& path) {
  if (paths.size() < kListed) paths.push_back(path);
}

}  // namespace

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

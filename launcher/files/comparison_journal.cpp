#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "launcher/files/comparison.hpp"

// What a comparison comes to: what is to be sent, what is to be done and in which order, what is
// told of it.
namespace dtrain::sync {
namespace {

constexpr std::size_t kMostPaths = 1000;

void list(std::vector<std::string>& paths, const std::string& path) {
  if (paths.size() < kMostPaths) paths.push_back(path);
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

// Collects the steps of a journal by the time at which they come, and what the target is recorded
// as when all of them are done.
class Comparison::JournalWriter {
 public:
  JournalWriter(const Comparison& comparison,
                const std::unordered_map<std::uint32_t, Staged>& staged)
      : comparison_(comparison),
        staged_(staged),
        whole_(comparison.left_.empty() && comparison.kept_.empty()) {
    after_.reserve(comparison.items_.size() + comparison.kept_.size());  // written_ has addresses
  }

  void add(std::uint32_t number) {
    const TreeEntry& entry = comparison_.tree_.entries[number];
    const Item& item = comparison_.items_[number];
    Operation operation;
    operation.path = entry.path;
    operation.number = number;
    operation.expect = item.expect;
    operation.mode = entry.mode;
    operation.mtime_ns = entry.mtime_ns;
    Written now = written(entry);
    if (item.known != nullptr && entry.kind == EntryKind::file) {
      set_content(now, item.known->sha256, item.known->disk_mtime_ns);
    }
    switch (item.action) {
      case Action::same:
      case Action::foreign:
        break;
      case Action::ask:
      case Action::left:
      case Action::below:
        return leave_out(item);
      case Action::make_folder:
        make_room(item, operation);
        add_step(folders_, operation, Operation::Kind::make_folder);
        if ((entry.mode & 0700) != 0700) add_step(modes_, operation, Operation::Kind::set_mode);
        break;
      case Action::make_link:
        make_room(item, operation);
        add_step(puts_, operation, Operation::Kind::put);
        break;
      case Action::want: {
        const auto found = staged_.find(number);
        if (found == staged_.end()) return leave_out(item);  // it was changing while it was read
        make_room(item, operation);
        add_step(puts_, operation, Operation::Kind::put);
        set_content(now, found->second.sha256, found->second.disk_mtime_ns);
        break;
      }
      case Action::hard_link: {
        const auto first = written_.find(*entry.same_as);
        if (first == written_.end()) return leave_out(item);
        make_room(item, operation);
        operation.other = comparison_.tree_.entries[*entry.same_as].path;
        add_step(attributes_, operation, Operation::Kind::hard_link);
        set_content(now, first->second->sha256, first->second->disk_mtime_ns);
        break;
      }
      case Action::touch:
        add_step(attributes_, operation, Operation::Kind::touch);
        set_content(now, comparison_.touched_sums_.at(number), entry.mtime_ns);
        break;
      case Action::mode:
        add_step(entry.kind == EntryKind::folder ? modes_ : attributes_, operation,
                 Operation::Kind::set_mode);
        break;
    }
    if (item.is_foreign()) {
      // Nobody says when somebody else's file changes: next time it is looked at again.
      if (entry.kind != EntryKind::folder) whole_ = false;
      return;
    }
    if (entry.kind == EntryKind::folder && item.action != Action::make_folder) {
      keep_open(item, operation);
    }
    after_.push_back(std::move(now));
    written_[number] = &after_.back();
  }

  Journal finish() && {
    Journal journal;
    for (const Written* entry : comparison_.kept_) after_.push_back(*entry);
    journal.after.entries = std::move(after_);
    if (whole_) journal.after.tree = comparison_.offer_.tree;
    // Inner folders get their modes first: an outer one may shut us out.
    std::reverse(modes_.begin(), modes_.end());
    std::vector<Operation> removals = comparison_.removals_;
    std::erase_if(removals, [&](const Operation& removal) { return is_in_room(removal.path); });
    for (auto* part : {&opens_, &room_, &folders_, &puts_, &attributes_, &removals, &modes_}) {
      std::move(part->begin(), part->end(), std::back_inserter(journal.operations));
    }
    if (only_opens_and_shuts(journal.operations)) journal.operations.clear();
    return journal;
  }

 private:
  static void add_step(std::vector<Operation>& part, Operation operation, Operation::Kind kind) {
    operation.kind = kind;
    part.push_back(std::move(operation));
  }

  static void set_content(Written& now, const std::string& sha256, std::int64_t disk_mtime_ns) {
    now.sha256 = sha256;
    now.disk_mtime_ns = disk_mtime_ns;
  }

  // Should it become again what we wrote, it is ours again.
  void leave_out(const Item& item) {
    whole_ = false;
    if (item.known != nullptr) after_.push_back(*item.known);
  }

  // What is ours and of another kind goes before `operation`.
  void make_room(const Item& item, Operation& operation) {
    if (!item.remove_first) return;
    if (item.expect.what == Expect::What::folder) {
      comparison_.remove_below(operation.path, room_);
      rooms_.insert(operation.path + "/");
    } else {
      add_step(room_, operation, Operation::Kind::remove_file);
    }
    operation.expect = Expect();
  }

  bool is_in_room(const std::string& path) const {
    for (auto at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
      if (rooms_.contains(path.substr(0, at + 1))) return true;
    }
    return false;
  }

  // A folder of ours that we may not write in: open while we work, then as it was.
  void keep_open(const Item& item, Operation operation) {
    if ((item.known->mode & 0700) == 0700) return;
    operation.kind = Operation::Kind::set_mode;
    if (item.action == Action::same) modes_.push_back(operation);
    operation.mode |= 0700;
    opens_.push_back(std::move(operation));
  }

  // Folders that were opened and shut for nothing.
  bool only_opens_and_shuts(const std::vector<Operation>& operations) const {
    return operations.size() == 2 * modes_.size() &&
           std::all_of(operations.begin(), operations.end(),
                       [](const Operation& o) { return o.kind == Operation::Kind::set_mode; }) &&
           std::none_of(comparison_.items_.begin(), comparison_.items_.end(),
                        [](const Item& item) { return item.action == Action::mode; });
  }

  const Comparison& comparison_;
  const std::unordered_map<std::uint32_t, Staged>& staged_;
  bool whole_;  // afterwards the target is all that was offered
  std::vector<Written> after_;
  std::unordered_map<std::uint32_t, const Written*> written_;  // by number; in after_
  std::vector<Operation> opens_;                               // outer folders first
  std::vector<Operation> room_;
  std::vector<Operation> folders_;
  std::vector<Operation> puts_;
  std::vector<Operation> attributes_;
  std::vector<Operation> modes_;
  std::set<std::string> rooms_;  // folders that go with what is in them; end with '/'
};

Journal Comparison::journal(const std::unordered_map<std::uint32_t, Staged>& staged) const {
  JournalWriter writer(*this, staged);
  for (std::uint32_t i = 0; i < items_.size(); ++i) writer.add(i);
  return std::move(writer).finish();
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
  if (outcome.left.size() > kMostPaths) outcome.left.resize(kMostPaths);
  return outcome;
}

}  // namespace dtrain::sync

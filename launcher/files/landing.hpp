#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/describe/class.hpp>

#include "launcher/core/files.hpp"
#include "launcher/files/beneath.hpp"
#include "launcher/files/record.hpp"
#include "launcher/files/sync.hpp"

// One target of a sync on the receiver's side: where it is, what we know of it, and how changes are
// applied to it so that a crash at any point can be repaired.
namespace dtrain::sync {

// What the sender says of one mount.
struct Offer {
  std::string target;
  std::string name;  // of the source
  bool single = false;
  std::string tree;  // hash
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  bool remove = true;
  bool overwrite = false;
};
BOOST_DESCRIBE_STRUCT(Offer, (), (target, name, single, tree, entries, bytes, remove, overwrite))

class Landing {
 public:
  // Finds where the target is.
  Landing(const Offer& offer, const fs::path& target, const ReceiveOptions& options);
  // Removes what was staged, and the folders made for it, unless it was applied or a journal still
  // speaks of it.
  ~Landing();
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  // Takes the target's lock (waits for another sync of it), removes the staging folder that a crash
  // left, and finishes what a journal says, unless `look_only`.
  void open(bool look_only);

  // The folder that entries are relative to: the target, or for a single file the one it is in.
  const fs::path& base() const noexcept { return base_; }
  const fs::path& target() const noexcept { return target_; }
  // The name of a single file.
  const std::string& name() const noexcept { return name_; }
  const Record& record() const noexcept { return record_; }
  // The record was written before this machine was last started: then what was written may not
  // have reached the disk.
  bool other_boot() const noexcept { return other_boot_; }
  // Null when the base does not exist.
  Beneath* files() noexcept { return files_ ? files_.get() : nullptr; }

  // True when the target is all that the record says, without reading a file.
  bool is_intact();

  // Makes the base, with this mode, and the staging folder. Throws Error(exhausted) when `bytes`
  // have no room.
  void begin(std::uint64_t bytes, std::uint32_t mode);
  int stage() const noexcept { return stage_.get(); }

  // The two halves of applying: from the first on, a repeat will finish it. The journal's
  // `after` needs entries and tree only. Gives what was left because it changed meanwhile.
  void commit(Journal journal);
  std::vector<SyncNote> apply();
  // Error(denied) when apply() could not do a step for a reason of its path; the others are done.
  void throw_if_refused() const;

 private:
  void find_target(const Offer& offer, const fs::path& target);
  void load();
  void recover();
  void open_base();
  void make_base(std::uint32_t mode);
  void remove_stage();
  void drop_unsafe(Journal& journal);
  std::vector<SyncNote> run(Journal& journal);
  fs::path record_file() const;
  fs::path journal_file() const;
  void save(const Record& record);
  void hook(const char* step) const {
    if (options_.hook) options_.hook(step);
  }

  const ReceiveOptions& options_;
  fs::path target_;
  fs::path base_;
  bool single_ = false;
  std::string name_;
  std::string key_;
  std::string stage_name_;
  std::optional<FileLock> lock_;
  std::unique_ptr<Beneath> files_;
  UniqueFd stage_;
  Record record_;
  bool other_boot_ = false;
  bool early_ = false;             // the record is there for a crash alone
  std::vector<std::string> made_;  // in this session
  std::optional<Journal> journal_;
  std::vector<std::string> refused_;
};

// The name of a target's record.
std::string record_key(const fs::path& target, bool single, const fs::path& home);

}  // namespace dtrain::sync

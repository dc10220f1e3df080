#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher/files/landing.hpp"
#include "launcher/files/record.hpp"
#include "launcher/files/tree.hpp"

namespace dtrain::sync {

// A file as it lies in the staging folder.
struct Staged {
  std::string sha256;
  std::uint64_t size = 0;
  std::int64_t disk_mtime_ns = 0;
};

// One target against the source's tree: what is to be sent, what is to be done. Reads the target,
// changes nothing.
class Comparison {
 public:
  // `tree` and `landing` must outlive it.
  Comparison(const Tree& tree, Landing& landing, const Offer& offer);

  // Files whose sum in the source decides: same size, other time, or not of a sync.
  const std::vector<std::uint32_t>& questions() const noexcept { return questions_; }
  // The sums, in hexadecimal, in that order; empty for a file that cannot be read now.
  void answer(const std::vector<std::string>& sums);

  // After the answers: entries whose content is to be sent, rising.
  std::vector<std::uint32_t> wanted() const;

  // What is to be done when these are staged, by entry; a wanted one that is not staged stays as it
  // is. Staged links are made by `landing`'s owner: see links().
  Journal journal(const std::unordered_map<std::uint32_t, Staged>& staged) const;
  // Links to be staged under their entry's number.
  std::vector<std::uint32_t> links() const;

  // What would be or was done.
  MountOutcome outcome() const;

 private:
  enum class Action : std::uint8_t {
    same,     // ours, as it should be
    foreign,  // as it should be, not ours
    make_folder,
    make_link,
    hard_link,
    want,
    ask,    // until answered
    touch,  // the content is right
    mode,   // all but the mode is right
    left,   // somebody else's
    below,  // in a folder that is left
  };
  struct Item {
    Action action = Action::same;
    Expect expect;
    const Written* known = nullptr;
    bool replaceable = false;   // when the content turns out to differ
    bool same_mode = false;     // files: what is there has the source's
    bool remove_first = false;  // something of another kind is in its place, and is ours
    const char* reason = "";

    // Nobody's but theirs who made it, though its mode may be set.
    bool is_foreign() const {
      return action == Action::foreign || (action == Action::mode && known == nullptr);
    }
  };

  class JournalWriter;

  void compare(std::uint32_t index);
  void compare_file(std::uint32_t index, const struct stat* there);
  void compare_folder(std::uint32_t index, const struct stat* there);
  void compare_link(std::uint32_t index, const struct stat* there);
  void link_later_names();
  void find_removals();
  void leave(Item& item, const char* reason);
  const Written* known(const std::string& path) const;
  bool is_unchanged(const Written& entry, const struct stat& there);
  bool only_ours(const std::string& path);
  void remove_below(const std::string& path, std::vector<Operation>& operations) const;
  static Written written(const TreeEntry& entry);

  const Tree& tree_;
  Landing& landing_;
  const Offer& offer_;
  Beneath* files_;
  std::unordered_map<std::string, const Written*> known_;
  std::vector<Item> items_;
  std::unordered_map<std::uint32_t, std::string> touched_sums_;  // SHA-256, by entry
  std::vector<std::uint32_t> questions_;
  std::string blocked_;  // ends with '/': nothing below it is looked at
  std::string missing_;  // ends with '/': nothing is there
  std::vector<SyncNote> left_;
  std::vector<Operation> removals_;
  std::vector<const Written*> kept_;  // no longer in the source, not removed, still ours
};

}  // namespace dtrain::sync

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Which files are left out: patterns as git reads them in .gitignore (gitignore(5)): '#', '!',
// escapes, "a/" for folders only, "/a" and "a/b" anchored, "**", the last that matches wins, and
// nothing comes back below a folder that is left out. Case matters.
namespace dtrain {

// One list of patterns, from one file or option.
class IgnoreList {
 public:
  IgnoreList() = default;
  // `base`: the folder that its patterns are relative to, "" or "a/b".
  IgnoreList(std::string_view text, std::string base);
  IgnoreList(const std::vector<std::string>& lines, std::string base);

  enum class Verdict : std::uint8_t { none, out, in };
  // What the last matching pattern says of `path`, which is relative to the root of all; `none`
  // when the path is not below the base or nothing matches. Looks at this path alone, not at the
  // folders above it.
  Verdict judge(std::string_view path, bool folder) const;

  bool empty() const noexcept { return patterns_.empty(); }

 private:
  struct Pattern {
    std::string text;
    bool negated = false;
    bool folders_only = false;
    bool name_only = false;  // no '/' in it: it is matched with the last component
  };
  void add(std::string_view line);

  std::string base_;  // ends with '/' unless empty
  std::vector<Pattern> patterns_;
};

// All lists that bear on a walk of one tree. `above` (options) goes before what files say; of
// files, the deeper one.
class IgnoreRules {
 public:
  explicit IgnoreRules(const std::vector<std::string>& patterns = {}) : above_(patterns, "") {}

  // Entering and leaving a folder that has lists of its own.
  void push(IgnoreList list) { lists_.push_back(std::move(list)); }
  void pop() { lists_.pop_back(); }

  // True when `path` is left out by a pattern that matches it itself.
  bool ignores(std::string_view path, bool folder) const;

 private:
  IgnoreList above_;
  std::vector<IgnoreList> lists_;
};

// Wild card match of git's: '?', '*', "[…]" with classes, '\' escapes. With `path`, '*', '?' and
// "[…]" do not match '/', and "**" between slashes matches any number of folders. Takes time in
// proportion to the product of both lengths at most.
bool wild_match(std::string_view pattern, std::string_view text, bool path);

}  // namespace dtrain

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "launcher/core/capture.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/ignore.hpp"
#include "launcher/files/scan.hpp"
#include "tests/launcher/files/sync_world.hpp"

using namespace dtrain;
using namespace dtrain::testing;

TEST_CASE("wild cards") {
  struct Case {
    const char* pattern;
    const char* text;
    bool matches;
  };
  for (const Case& each : std::initializer_list<Case>{{"foo", "foo", true},
                                                      {"*", "foo", true},
                                                      {"*", "foo/bar", false},
                                                      {"**", "foo/bar", true},
                                                      {"*.o", "a.o", true},
                                                      {"f?o", "f/o", false},
                                                      {"foo/**", "foo", false},
                                                      {"foo/**", "foo/a/b", true},
                                                      {"**/foo", "foo", true},
                                                      {"**/foo", "a/b/foo", true},
                                                      {"a/**/b", "a/b", true},
                                                      {"a/**/b", "a/x/y/b", true},
                                                      {"a/**/b", "a/x/yb", false},
                                                      {"foo**bar", "foo/x/bar", false},
                                                      {"[a-c]x", "bx", true},
                                                      {"[!a-c]x", "bx", false},
                                                      {"[^a-c]x", "dx", true},
                                                      {"[]]", "]", true},
                                                      {"[]-]", "-", true},
                                                      {"[a-]", "-", true},
                                                      {"[[:digit:][:upper:]]", "7", true},
                                                      {"[[:nonsense:]]", "n", false},
                                                      {"[", "[", false},
                                                      {"\\[", "[", true},
                                                      {"a\\", "a\\", false},
                                                      {"[\\]]", "]", true},
                                                      {"a[/]b", "a/b", false},
                                                      {"", "", true}}) {
    CAPTURE(each.pattern);
    CAPTURE(each.text);
    CHECK(wild_match(each.pattern, each.text, true) == each.matches);
  }
  CHECK(wild_match("*", "a/b", false));
}

TEST_CASE("a pattern made to take forever does not") {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  CHECK_FALSE(wild_match(pattern + "b", std::string(500, 'a'), false));
  CHECK_FALSE(wild_match(pattern + "b", std::string(500, 'a'), true));
  std::string folders;
  for (int i = 0; i < 40; ++i) folders += "**/";
  std::string deep;
  for (int i = 0; i < 150; ++i) deep += "a/";
  CHECK_FALSE(wild_match(folders + "b", deep + "a", true));
}

namespace {

Captured git(const fs::path& folder, std::vector<std::string> words, const std::string& input) {
  SpawnOptions options;
  options.argv = {"git", "-C", folder.string(), "-c", "core.quotePath=false"};
  options.argv.insert(options.argv.end(), words.begin(), words.end());
  options.env.push_back("GIT_CONFIG_GLOBAL=/dev/null");
  options.env.push_back("GIT_CONFIG_SYSTEM=/dev/null");
  return capture(options, input, std::chrono::seconds(60));
}

// Files that `git` would track, and files that a scan finds.
void compare_with_git(const fs::path& folder, const std::vector<std::string>& exclude) {
  std::vector<std::string> words{"ls-files", "-z", "--others",
                                 "--exclude-per-directory=.gitignore"};
  for (const std::string& pattern : exclude) words.push_back("--exclude=" + pattern);
  const Captured listed = git(folder, words, "");
  REQUIRE(listed.exit.ok());
  std::set<std::string> by_git;
  for (const std::string& path : split(listed.out, '\0')) {
    if (!path.empty()) by_git.insert(path);
  }
  ScanOptions options;
  options.exclude = exclude;
  options.exclude.push_back("/.git");
  options.filter_files = {".gitignore"};
  std::set<std::string> by_us;
  for (const TreeEntry& entry : scan_tree(folder, options).tree.entries) {
    if (entry.kind != EntryKind::folder) by_us.insert(entry.path);
  }
  std::vector<std::string> only_git;
  std::vector<std::string> only_us;
  std::set_difference(by_git.begin(), by_git.end(), by_us.begin(), by_us.end(),
                      std::back_inserter(only_git));
  std::set_difference(by_us.begin(), by_us.end(), by_git.begin(), by_git.end(),
                      std::back_inserter(only_us));
  CAPTURE(join(only_git, " "));
  CAPTURE(join(only_us, " "));
  CHECK(only_git.empty());
  CHECK(only_us.empty());
}

}  // namespace

TEST_CASE("what git leaves out is left out") {
  const TemporaryFolder folder;
  REQUIRE(git(folder.path(), {"init", "-q"}, "").exit.ok());
  std::mt19937 random(7);
  const auto pick = [&](const std::vector<std::string>& from) {
    return from[random() % from.size()];
  };
  const std::vector<std::string> names{"a",  "b",  "aa", "ab",   "a.o", "Foo", "foo", "b c",
                                       "-x", "#n", "!n", "a\\b", "[a]", "x ",  "é"};
  for (int i = 0; i < 250; ++i) {
    fs::path path = folder.path();
    for (unsigned depth = random() % 3; depth > 0; --depth) path /= pick(names);
    std::error_code failed;
    fs::create_directories(path, failed);
    if (!failed && !fs::is_directory(path / pick(names))) write_file(path / pick(names), "x");
  }
  const std::vector<std::string> parts{
      "a",    "b",   "aa",  "ab",   "*",  "**",   "a*",     "*.o",   "?",           "[ab]",
      "[!a]", "foo", "Foo", "f*",   "**", "/",    "/",      "/",     "[[:alpha:]]", "\\#n",
      "\\!n", "#n",  "!n",  "x\\ ", "x ", "b c",  "a\\\\b", "\\[a]", "-x",          "é",
      "a**",  "**b", "*a*", "?*",   "[a", "[]a]", "[a-z]*", "\\"};
  for (int round = 0; round < 150; ++round) {
    for (const fs::path& where : {fs::path(), fs::path("a"), fs::path("b/a")}) {
      const fs::path file = folder.path() / where / ".gitignore";
      std::error_code failed;
      fs::remove(file, failed);
      if (!fs::is_directory(folder.path() / where) || (random() % 3 == 0 && !where.empty()))
        continue;
      std::string text = random() % 20 == 0 ? "\xef\xbb\xbf" : "";
      for (unsigned lines = 1 + random() % 4; lines > 0; --lines) {
        if (random() % 4 == 0) text += "!";
        if (random() % 4 == 0) text += "/";
        for (unsigned count = 1 + random() % 3; count > 0; --count) text += pick(parts);
        if (random() % 4 == 0) text += "/";
        if (random() % 10 == 0) text += "  ";
        if (random() % 10 == 0) text += "\r";
        if (lines > 1 || random() % 2 == 0) text += "\n";
      }
      write_file(file, text);
    }
    std::vector<std::string> exclude;
    if (round % 3 == 0) exclude = {pick(parts) + pick(parts), "!" + pick(parts)};
    CAPTURE(round);
    CAPTURE(slurp(folder.path() / ".gitignore"));
    CAPTURE(slurp(folder.path() / "a/.gitignore"));
    CAPTURE(slurp(folder.path() / "b/a/.gitignore"));
    CAPTURE(join(exclude, " | "));
    compare_with_git(folder.path(), exclude);
  }
}

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>

#include "launcher/core/error.hpp"
#include "launcher/files/content_tree.hpp"
#include "launcher/files/snapshot.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

namespace {

const std::string kSum(64, 'a');

std::string listed(const Snapshot& snapshot) {
  std::string text;
  for (const ContentEntry& entry : snapshot.tree.entries) text += entry.path + "\n";
  return text;
}

std::string entry(const std::string& path) {
  return R"({"path":")" + path + R"(","sha256":")" + kSum + R"(","size":1})";
}

}  // namespace

TEST_CASE("a tree is one text, and is read back from it") {
  ContentTree tree;
  tree.entries = {{"a \"b\"", ContentEntry::Kind::file, kSum, 7, 0644, ""},
                  {"bin/run", ContentEntry::Kind::file, kSum, 0, 0755, ""},
                  {"empty", ContentEntry::Kind::folder, "", 0, 0755, ""},
                  {"l\xc3\xa4nk", ContentEntry::Kind::link, "", 0, 0777, "/else/where"}};
  const std::string text = to_text(tree);
  CHECK(content_tree_from_text(text) == tree);
  CHECK(to_text(content_tree_from_text(text)) == text);
  CHECK(total_size(tree) == 7);
  CHECK(file_count(tree) == 2);
  CHECK(content_tree_from_text(to_text(ContentTree{})) == ContentTree{});
}

TEST_CASE("a tree that would write elsewhere is none") {
  CHECK_NOTHROW(content_tree_from_text("[" + entry("a") + "," + entry("a.b") + "]"));
  const std::string link = R"({"path":"a","link":"/tmp"},)";
  const std::vector<std::string> wrong = {
      "",
      "{}",
      "[1]",
      "[[]]",
      "[{}]",
      R"([{"path":{"path":"a"}}])",
      "[" + entry("../a") + "]",
      "[" + entry("/a") + "]",
      "[" + entry("a/../b") + "]",
      "[" + entry("a//b") + "]",
      "[" + entry("") + "]",
      "[" + entry("a\\u0000b") + "]",
      "[" + entry("b") + "," + entry("a") + "]",
      "[" + entry("a") + "," + entry("a") + "]",
      "[" + entry("a") + "," + entry("a/b") + "]",
      "[" + entry("a") + "," + entry("a.b") + "," + entry("a/b") + "]",
      "[" + link + entry("a/b") + "]",
      "[" + link + entry("a-b") + "," + entry("a/b") + "]",
      R"([{"path":"a","sha256":"abc","size":1}])",
      R"([{"path":"a","sha256":")" + kSum + R"(","size":-1}])",
      R"([{"path":"a","sha256":")" + kSum + R"(","size":1.5}])",
      R"([{"path":"a","link":""}])",
      R"([{"path":"a","link":1}])",
  };
  for (const std::string& text : wrong) {
    CAPTURE(text);
    CHECK_THROWS_AS(content_tree_from_text(text), Error);
  }
}

TEST_CASE("a snapshot has what is there, and not what is left out") {
  TemporaryFolder folder;
  const fs::path work = folder / "work";
  write(work / "train.cpp", "one");
  write(work / "same.cpp", "one");
  write(work / "sub/run", "two");
  fs::permissions(work / "sub/run", fs::perms(04755));  // its bit stays behind
  fs::create_hard_link(work / "train.cpp", work / "twin.cpp");
  write(work / ".git/HEAD", "no");
  write(work / "sub/.git", "a submodule's");
  write(work / "build/train", "program");
  write(work / "build/deep/x.o", "object");
  fs::create_directories(work / "empty");
  fs::create_symlink("train.cpp", work / "link");
  fs::create_symlink("/no/where", work / "dangling");
  REQUIRE(::mkfifo((work / "fifo").c_str(), 0600) == 0);
  SnapshotOptions options;
  options.ignore = [](const std::string& path, bool is_folder) {
    return is_version_control(path, is_folder) || path == "build";
  };
  FileFactsCache cache;
  CHECK(listed(take_snapshot(work, options, cache)) ==
        "dangling\nempty\nlink\nsame.cpp\nsub/run\ntrain.cpp\ntwin.cpp\n");
  options.always = {"build/train"};
  const Snapshot snapshot = take_snapshot(work, options, cache);
  CHECK(listed(snapshot) ==
        "build/train\ndangling\nempty\nlink\nsame.cpp\nsub/run\ntrain.cpp\ntwin.cpp\n");
  CHECK(snapshot.skipped == std::vector<std::string>{"fifo"});
  CHECK(snapshot.size == 7 + 3 + 3 + 3 + 3);
  CHECK(snapshot.files.size() == 3);
  CHECK(snapshot.tree.entries[5].mode == 0755);
  CHECK(content_tree_from_text(to_text(snapshot.tree)) == snapshot.tree);
  CHECK_THROWS_AS(take_snapshot(folder / "nowhere", options, cache), Error);
}

TEST_CASE("a snapshot is taken where no more threads can be made") {
  TemporaryFolder folder;
  constexpr int kFiles = 2000;  // more than one thread reads by itself
  for (int i = 0; i < kFiles; ++i) write(folder / ("f" + std::to_string(i)), std::to_string(i));
  FileFactsCache cache;
  const dtrain::testing::NoThreads none;
  CHECK(take_snapshot(folder.path(), {}, cache).files.size() == kFiles);
}

TEST_CASE("a file is read again only after a change") {
  TemporaryFolder folder;
  const fs::path file = folder / "file";
  write(file, "one");
  // Long ago, so that what is known of it may be kept.
  const auto age = [&] {
    const timespec times[2] = {{1000, 0}, {1000, 0}};
    REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  };
  age();
  struct stat status {};
  const auto look = [&](FileFactsCache& cache) {
    REQUIRE(::stat(file.c_str(), &status) == 0);
    return cache.facts(file, identity_of(status)).sha256;
  };
  // The time of the inode's change cannot be set: what changed just now is not kept.
  FileFactsCache fresh(folder / "sums");
  const std::string one = look(fresh);
  CHECK(fresh.bytes_read() == 3);
  CHECK(look(fresh) == one);
  CHECK(fresh.bytes_read() == 6);
  fresh.save();

  write(file, "two");
  age();
  FileFactsCache again(folder / "sums");
  CHECK(look(again) != one);
  // One that changes while it is looked at.
  struct stat old = status;
  write(file, "three");
  CHECK_THROWS_AS(again.facts(file, identity_of(old)), Error);

  // Long unchanged: of the system's own.
  struct stat libc {};
  const fs::path program = "/bin/sh";
  REQUIRE(::stat(program.c_str(), &libc) == 0);
  FileFactsCache first(folder / "sums");
  const FileFacts facts = first.facts(program, identity_of(libc));
  CHECK(first.bytes_read() == static_cast<std::uint64_t>(libc.st_size));
  first.save();
  FileFactsCache second(folder / "sums");
  CHECK(second.facts(program, identity_of(libc)).sha256 == facts.sha256);
  CHECK(second.facts(program, identity_of(libc)).library_names == facts.library_names);
  CHECK(second.bytes_read() == 0);
  // A torn or foreign file is as good as none.
  write(folder / "sums", "dtrain hashes 1\nnonsense\n1 2 3");
  FileFactsCache torn(folder / "sums");
  CHECK(torn.facts(program, identity_of(libc)).sha256 == facts.sha256);
}

TEST_CASE("names of libraries are found wherever a piece ends") {
  const std::string text("\0liba.so\0x/libb-c.so.1.2\0lib.so\0libd.soup\0not.so\0libe.so", 56);
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    CAPTURE(piece);
    LibraryNames names;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      names.add(std::string_view(text).substr(at, piece));
    }
    CHECK(names.names() == std::vector<std::string>{"liba.so", "libb-c.so.1.2"});
  }
}

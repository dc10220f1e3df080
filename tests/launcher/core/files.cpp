#include "launcher/core/files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/side_by_side.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a file is read whole, with a bound") {
  const TemporaryFolder folder;
  const std::string content(200000, 'x');
  write_file_atomic(folder / "f", content);
  CHECK(read_file(folder / "f") == content);
  CHECK(read_file(folder / "f", content.size()) == content);
  CHECK_THROWS_AS(read_file(folder / "f", content.size() - 1), Error);
  CHECK_THROWS_AS(read_file(folder / "none"), Error);
  CHECK_FALSE(read_file_if_there(folder / "none").has_value());
  CHECK(read_file_if_there(folder / "f") == content);
}

TEST_CASE("a name that leads to another file, or to none, leads to the first no more") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "one");
  const FileOf first(folder / "f");
  CHECK_FALSE(first.is_gone(folder / "f"));
  write_file_atomic(folder / "f", "one");
  CHECK(first.is_gone(folder / "f"));
  CHECK(first.is_gone(folder / "none"));
  CHECK(first.is_gone(folder / "f/below"));  // a part of the name is no folder
  CHECK_FALSE(FileOf(folder / "none").is_gone(folder / "none"));
  CHECK_FALSE(FileOf().is_gone(folder / "f"));
}

TEST_CASE("an atomic write leaves the old or the new, the mode asked for, and no rubbish") {
  const TemporaryFolder folder;
  write_file_atomic(folder / "f", "old", 0600);
  write_file_atomic(folder / "f", "new", 0644);
  CHECK(read_file(folder / "f") == "new");
  CHECK(mode_of(folder / "f") == 0644);
  fs::create_directory(folder / "taken");
  try {
    write_file_atomic(folder / "taken", "x");
    FAIL("a folder was replaced");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("taken") != std::string::npos);
  }
  CHECK_THROWS_AS(write_file_atomic(folder / "none/f", "x"), Error);
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("folders are made 0700") {
  const TemporaryFolder folder;
  make_folders(folder / "a/b/c");
  make_folders(folder / "a/b/c");
  CHECK(mode_of(folder / "a/b") == 0700);
  write_file_atomic(folder / "f", "");
  CHECK_THROWS_AS(make_folders(folder / "f/x"), Error);
}

TEST_CASE("a private folder is ours, no link, and closed to others") {
  const TemporaryFolder folder;
  make_private_folder(folder / "p");
  CHECK(mode_of(folder / "p") == 0700);
  ::chmod((folder / "p").c_str(), 0755);
  make_private_folder(folder / "p");
  CHECK(mode_of(folder / "p") == 0700);
  fs::create_symlink(folder / "p", folder / "link");
  CHECK_THROWS_AS(make_private_folder(folder / "link"), Error);
  write_file_atomic(folder / "f", "");
  CHECK_THROWS_AS(make_private_folder(folder / "f"), Error);
}

TEST_CASE("folders are made in one that others remove while it is empty") {
  const TemporaryFolder folder;
  std::atomic<int> removals = 0;
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (removals > 0 && ::rmdir((folder / "shared").c_str()) == 0) --removals;
    }
  });
  constexpr int kFewerThanTries = 90;
  for (int round = 0; round < 2000; ++round) {
    removals = kFewerThanTries;
    REQUIRE_NOTHROW(make_private_subfolder(folder / "shared/mine"));
    fs::remove(folder / "shared/mine");
    removals = kFewerThanTries;
    REQUIRE_NOTHROW(make_folders(folder / "shared/mine"));
    fs::remove(folder / "shared/mine");
  }
  write_file_atomic(folder / "file", "");
  CHECK_THROWS_AS(make_private_subfolder(folder / "file/mine"), Error);
  CHECK_THROWS_AS(make_private_subfolder(folder / "none/shared/mine"), Error);
}

TEST_CASE("a tree is removed without following links") {
  const TemporaryFolder folder;
  make_folders(folder / "keep");
  write_file_atomic(folder / "keep/f", "x");
  make_folders(folder / "tree/a");
  fs::create_symlink(folder / "keep", folder / "tree/a/link");
  remove_tree(folder / "tree");
  remove_tree(folder / "tree");
  CHECK_FALSE(fs::exists(folder / "tree"));
  CHECK(read_file(folder / "keep/f") == "x");
}

TEST_CASE("two that remove one tree are in nobody's way") {
  const TemporaryFolder folder;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20; ++i) {
      for (int j = 0; j < 5; ++j) {
        make_folders(folder / ("tree/" + std::to_string(i) + "/" + std::to_string(j)));
      }
    }
    std::array<std::string, 4> wrong;
    side_by_side(wrong.size(), wrong.size(), [&](std::size_t i) {
      try {
        remove_tree(folder / "tree");
      } catch (const Error& error) {
        wrong[i] = error.what();
      }
    });
    CHECK(wrong == std::array<std::string, 4>{});
    REQUIRE_FALSE(fs::exists(folder / "tree"));
  }
}

TEST_CASE("a folder that is not there is empty, one that cannot be looked into is not") {
  const TemporaryFolder folder;
  CHECK(entries_of(folder / "none").empty());
  CHECK(entries_of(folder.path()).empty());
  for (const char* name : {"b", "a", ".c"}) write_file_atomic(folder / name, "");
  CHECK(entries_of(folder.path()) ==
        std::vector<fs::path>{folder / ".c", folder / "a", folder / "b"});
  CHECK_THROWS_WITH_AS(entries_of(folder / "a"), doctest::Contains("cannot list"), Error);
}

TEST_CASE("a lock is held once, and free again at its end") {
  const TemporaryFolder folder;
  {
    const auto first = FileLock::try_lock(folder / "lock");
    REQUIRE(first.has_value());
    CHECK_FALSE(FileLock::try_lock(folder / "lock").has_value());
  }
  CHECK(FileLock::try_lock(folder / "lock").has_value());
  FileLock::wait(folder / "lock");
}

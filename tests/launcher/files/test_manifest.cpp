#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/stored_checkpoints.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;
using dtrain::testing::write;

TEST_CASE("the sum that others compute") {
  Sha256 sum;
  sum.add("a");
  sum.add("bc");
  CHECK(sum.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Sha256().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const TemporaryFolder folder;
  write(folder / "f", std::string(1000000, 'a'));
  const FileSum file = sum_file(folder / "f");
  CHECK(file.size == 1000000);
  CHECK(file.sha256 == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(is_sha256(file.sha256));
  CHECK_FALSE(is_sha256("ABC"));
}

TEST_CASE("paths that may stand in a list") {
  for (const char* good : {"a", "a/b", "..a", "a b", "ä/ö", ".hidden"}) {
    CAPTURE(good);
    CHECK(is_plain_relative_path(good));
  }
  for (const std::string& bad :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string(".."), std::string("a/../b"), std::string("a/."), std::string("a\nb"),
        std::string("a\xff"), std::string(5000, 'a')}) {
    CAPTURE(bad);
    CHECK_FALSE(is_plain_relative_path(bad));
  }
}

TEST_CASE("a folder as a list, and whether it is still so") {
  const TemporaryFolder folder;
  write(folder / "b", "22");
  write(folder / "a/deep/file", "4444");
  std::vector<FileEntry> entries = list_files(folder.path());
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].path == "a/deep/file");
  CHECK(entries[1].size == 2);
  CHECK(total_size(entries) == 6);
  compute_sums(folder.path(), entries);
  CHECK(file_entries_from_json(to_json(entries)) == entries);
  fsync_tree(folder.path(), entries);
  verify_sizes(folder.path(), entries, true);
  verify_sums(folder.path(), entries);

  SUBCASE("another size") {
    write(folder / "b", "333");
    CHECK_THROWS_WITH_AS(verify_sizes(folder.path(), entries),
                         doctest::Contains("has 3 bytes, not 2"), Error);
    CHECK_THROWS_AS(compute_sums(folder.path(), entries), Error);
  }
  SUBCASE("other bytes") {
    write(folder / "b", "33");
    verify_sizes(folder.path(), entries);
    CHECK_THROWS_WITH_AS(verify_sums(folder.path(), entries), doctest::Contains("other bytes"),
                         Error);
  }
  SUBCASE("missing") {
    fs::remove(folder / "b");
    CHECK_THROWS_WITH_AS(verify_sizes(folder.path(), entries), doctest::Contains("is missing"),
                         Error);
  }
  SUBCASE("one too many") {
    write(folder / "c", "");
    verify_sizes(folder.path(), entries);
    CHECK_THROWS_WITH_AS(verify_sizes(folder.path(), entries, true),
                         doctest::Contains("not in the list"), Error);
  }
  SUBCASE("a link in place of a folder or a file") {
    fs::rename(folder / "a", folder / "real");
    fs::create_directory_symlink(folder / "real", folder / "a");
    CHECK_THROWS_AS(verify_sizes(folder.path(), entries), Error);
  }
}

TEST_CASE("what may not be in a folder") {
  const TemporaryFolder folder;
  write(folder / "in/file", "x");
  SUBCASE("a link") {
    fs::create_symlink("file", folder / "in/link");
    CHECK_THROWS_WITH_AS(list_files(folder / "in"), doctest::Contains("symbolic link"), Error);
  }
  SUBCASE("a pipe") {
    REQUIRE(::mkfifo((folder / "in/pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(list_files(folder / "in"), doctest::Contains("not a regular file"), Error);
  }
  SUBCASE("a name that is not text") {
    write(folder / "in/\xff", "x");
    CHECK_THROWS_WITH_AS(list_files(folder / "in"), doctest::Contains("not plain"), Error);
  }
  SUBCASE("too many") {
    write(folder / "in/other", "x");
    CHECK_THROWS_WITH_AS(list_files(folder / "in", {.files = 1}), doctest::Contains("more than 1"),
                         Error);
  }
  SUBCASE("too deep") {
    write(folder / "in/1/2/3/f", "x");
    CHECK_THROWS_WITH_AS(list_files(folder / "in", {.depth = 3}), doctest::Contains("deeper"),
                         Error);
  }
}

TEST_CASE("lists from outside are read strictly") {
  const std::string sum(64, '0');
  const auto bad = [](const nlohmann::json& json) {
    CAPTURE(json.dump());
    CHECK_THROWS_AS(file_entries_from_json(json), Error);
  };
  bad(nlohmann::json::object());
  bad({1});
  bad({{{"path", "../x"}, {"size", 1}, {"sha256", sum}}});
  bad({{{"path", "x"}, {"size", -1}, {"sha256", sum}}});
  bad({{{"path", "x"}, {"size", 1.5}, {"sha256", sum}}});
  bad({{{"path", "x"}, {"size", 1}, {"sha256", "00"}}});
  bad({{{"path", "x"}, {"size", 1}}});
  bad({{{"path", "x"}, {"size", 1}, {"sha256", sum}},
       {{"path", "x"}, {"size", 1}, {"sha256", sum}}});
  CHECK(file_entries_from_json(nlohmann::json::array()).empty());
}

TEST_CASE("a folder's size is what it takes on the disk, without holes") {
  const TemporaryFolder folder;
  write(folder / "a/b", std::string(10000, 'x'));
  write(folder / "hole", "");
  fs::resize_file(folder / "hole", 1 << 30);
  CHECK(folder_bytes(folder.path()) == 10000);
  fs::create_hard_link(folder / "a/b", folder / "c");
  CHECK(folder_bytes(folder.path()) == 10000);
  CHECK(count_files(folder.path()).files == 3);
  CHECK(count_files(folder.path()).bytes == 20000);
}

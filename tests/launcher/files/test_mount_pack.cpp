#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <array>

#include <fstream>

#include "launcher/core/error.hpp"
#include "launcher/files/mount_pack.hpp"
#include "launcher/files/sha256.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

struct Mounts {
  TemporaryFolder folder;
  fs::path from = folder / "from";
  ContentStore store{folder / "store"};
  FileFactsCache cache;

  fs::path write(const std::string& path, const std::string& text, unsigned mode = 0644) {
    const fs::path file = from / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
    ::chmod(file.c_str(), mode);
    const std::array<timespec, 2> times{{{1600000000, 123000000}, {1600000000, 123000000}}};
    ::utimensat(AT_FDCWD, file.c_str(), times.data(), 0);
    return file;
  }

  // As it would be sent and stored.
  ContentTree stored(const std::vector<SyncMount>& mounts, MountPack& pack) {
    pack = pack_mounts(mounts, cache);
    for (const ContentEntry& entry : pack.tree.entries) {
      if (entry.kind != ContentEntry::Kind::file) continue;
      const bool is_stats = entry.sha256 == pack.stats_sum;
      store.put(entry.sha256, is_stats ? pack.stats : read_file(pack.files.at(entry.sha256)));
    }
    return content_tree_from_text(to_text(pack.tree));
  }
};

SyncMount mount(const fs::path& source) {
  SyncMount one;
  one.source = source;
  return one;
}

struct stat stat_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status;
}

}  // namespace

TEST_CASE("mounts are unpacked as they were packed") {
  Mounts mounts;
  mounts.write("data/a/weights", "www");
  mounts.write("data/a/key", "secret", 0600);
  mounts.write("data/run.sh", "#!/bin/sh\n", 0750);
  mounts.write("data/skipped.tmp", "no");
  const fs::path old = mounts.write("data/old", "of 1969");
  const std::array<timespec, 2> before{{{-2, 500000000}, {-2, 500000000}}};
  REQUIRE(::utimensat(AT_FDCWD, old.c_str(), before.data(), 0) == 0);
  fs::create_symlink("a/key", mounts.from / "data/link");
  fs::create_directory(mounts.from / "data/empty");
  fs::permissions(mounts.from / "data/a", fs::perms(0711));
  mounts.write("one.txt", "one", 0640);
  fs::create_directory(mounts.from / "nothing");
  std::vector<SyncMount> all{mount(mounts.from / "data"), mount(mounts.from / "one.txt"),
                             mount(mounts.from / "nothing")};
  all[0].exclude = {"*.tmp"};
  MountPack pack;
  const ContentTree tree = mounts.stored(all, pack);
  CHECK(pack.sources == std::vector<std::string>{"0", "1/one.txt", "2"});
  const fs::path to = mounts.folder / "to";
  unpack_mounts(mounts.store, tree, to);
  for (const std::string path : {"a/weights", "a/key", "run.sh", "old", "a"}) {
    CAPTURE(path);
    const struct stat was = stat_of(mounts.from / "data" / path);
    const struct stat is = stat_of(to / "0" / path);
    CHECK(is.st_mode == was.st_mode);
    if (!S_ISREG(was.st_mode)) continue;
    CHECK(is.st_mtim.tv_sec == was.st_mtim.tv_sec);
    CHECK(is.st_mtim.tv_nsec == was.st_mtim.tv_nsec);
    CHECK(read_file(to / "0" / path) == read_file(mounts.from / "data" / path));
  }
  CHECK(fs::read_symlink(to / "0/link") == "a/key");
  CHECK(fs::is_empty(to / "0/empty"));
  CHECK_FALSE(fs::exists(to / "0/skipped.tmp"));
  CHECK(read_file(to / "1/one.txt") == "one");
  CHECK((stat_of(to / "1/one.txt").st_mode & 0777) == 0640);
  CHECK(fs::is_directory(to / "2"));
  // The same again is the same tree.
  CHECK(to_text(pack_mounts(all, mounts.cache).tree) == to_text(pack.tree));
}

TEST_CASE("modes that are said reach no further than the tree") {
  Mounts mounts;
  const fs::path outside = mounts.write("outside", "x", 0600);
  mounts.write("data/file", "x");
  fs::create_symlink(outside, mounts.from / "data/link");
  MountPack pack;
  ContentTree tree = mounts.stored({mount(mounts.from / "data")}, pack);
  const std::string stats = R"({"0/link": [511, 0], "../outside": [511, 0], "0/file": [448, 0]})";
  Sha256 sum;
  sum.add(stats);
  const std::string name = sum.hex();
  mounts.store.put(name, stats);
  for (ContentEntry& entry : tree.entries) {
    if (entry.path != "stats.json") continue;
    entry.sha256 = name;
    entry.size = stats.size();
  }
  unpack_mounts(mounts.store, tree, mounts.folder / "to");
  CHECK((stat_of(outside).st_mode & 0777) == 0600);
  CHECK((stat_of(mounts.folder / "to/0/file").st_mode & 0777) == 0700);
}

TEST_CASE("a tree without modes is none of mounts") {
  Mounts mounts;
  const std::string bad = "[1";
  Sha256 sum;
  sum.add(bad);
  mounts.store.put(sum.hex(), bad);
  ContentTree tree;
  tree.entries.push_back({"stats.json", ContentEntry::Kind::file, sum.hex(), bad.size(), 0644, ""});
  CHECK_THROWS_AS(unpack_mounts(mounts.store, tree, mounts.folder / "to"), Error);
  FileFactsCache cache;
  CHECK_THROWS_AS(pack_mounts({mount(mounts.from / "missing")}, cache), Error);
}

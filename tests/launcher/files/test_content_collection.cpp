#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fstream>

#include "launcher/core/error.hpp"
#include "launcher/files/content_collection.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;
using namespace std::chrono_literals;

namespace {

struct House {
  House() { options.gathered = std::chrono::system_clock::now(); }

  std::string put(const std::string& text, std::chrono::seconds age) const {
    Sha256 sum;
    sum.add(text);
    const std::string name = sum.hex();
    store.put(name, text);
    used(store.blob(name), age);
    return name;
  }
  // A tree of files that are in the store.
  std::string put_tree(const std::vector<std::string>& texts, std::chrono::seconds age) const {
    ContentTree tree;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      ContentEntry entry;
      entry.path = "file-" + std::to_string(i);
      entry.sha256 = put(texts[i], age);
      entry.size = texts[i].size();
      tree.entries.push_back(entry);
    }
    return put(to_text(tree), age);
  }
  bool there(const std::string& sum) const { return fs::exists(store.blob(sum)); }

  static void used(const fs::path& path, std::chrono::seconds age) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= age.count();
    const timespec times[2] = {now, {0, UTIME_OMIT}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  }
  static void changed(const fs::path& path, std::chrono::seconds age) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= age.count();
    const timespec times[2] = {{0, UTIME_OMIT}, now};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  }

  TemporaryFolder folder;
  ContentStore store{folder / "content"};
  CollectionOptions options;
};

}  // namespace

TEST_CASE("content that a job needs stays, the rest goes") {
  House house;
  const std::string used = house.put_tree({"one", "two"}, 100h);
  const std::string unused = house.put_tree({"two", "three"}, 100h);
  const std::string offered = house.put("four", 100h);
  house.options.trees = {used};
  house.options.blobs = {offered};

  house.options.dry_run = true;
  const Collection seen = collect_content(house.store, house.options);
  CHECK(seen.blobs == 2);  // "three" and the tree itself
  CHECK(house.there(unused));
  house.options.dry_run = false;
  const Collection done = collect_content(house.store, house.options);
  CHECK(done.blobs == seen.blobs);
  CHECK(done.blob_bytes == seen.blob_bytes);
  CHECK_FALSE(house.there(unused));
  CHECK(house.there(offered));
  CHECK(missing_blobs(house.store, house.store.tree(used)).empty());
  CHECK(collect_content(house.store, house.options).blobs == 0);
}

TEST_CASE("the least recently used goes first, and no more than must") {
  House house;
  const std::string old = house.put(std::string(100, 'a'), 30h);
  const std::string older = house.put(std::string(100, 'b'), 40h);
  const std::string recent = house.put(std::string(100, 'c'), 20h);
  house.options.keep = 200;
  const Collection done = collect_content(house.store, house.options);
  CHECK(done.blobs == 1);
  CHECK(done.unneeded_bytes == 200);
  CHECK_FALSE(house.there(older));
  CHECK(house.there(old));
  CHECK(house.there(recent));
}

TEST_CASE("what was used a moment ago stays, whoever needs it") {
  House house;
  const std::string fresh = house.put("fresh", 30min);
  const std::string asked_for = house.put("asked for", 30h);
  CHECK(house.store.has(asked_for));  // as a submit or a staging does that has yet to name it
  CHECK(collect_content(house.store, house.options).blobs == 0);
  // No shorter grace than is safe.
  house.options.grace = 0s;
  CHECK(collect_content(house.store, house.options).blobs == 1);
  CHECK_FALSE(house.there(fresh));
  CHECK(house.there(asked_for));
}

TEST_CASE("a bundle goes with its last use, and one that runs stays") {
  House house;
  const std::string running = house.put_tree({"program"}, 1s);
  const std::string over = house.put_tree({"another"}, 1s);
  for (const std::string& tree : {running, over}) {
    make_bundle(house.store, house.store.tree(tree), tree);
    House::changed(house.store.bundle(tree), 30h);
  }
  for (const auto& entry : fs::recursive_directory_iterator(house.store.root() / "blobs")) {
    if (entry.is_regular_file()) House::used(entry.path(), 30h);
  }
  house.options.trees = {running};
  house.options.dry_run = true;
  const Collection seen = collect_content(house.store, house.options);
  house.options.dry_run = false;
  const Collection done = collect_content(house.store, house.options);
  CHECK(seen.blob_bytes == done.blob_bytes);
  CHECK(done.blob_bytes >= std::string("another").size());
  CHECK(fs::exists(house.store.bundle(running) / "file-0"));
  CHECK_FALSE(fs::exists(house.store.bundle(over)));
  // It is made again when it is wanted again, and its folder says that it was used.
  CHECK(house.store.has(running));
  make_bundle(house.store, house.store.tree(running), running);
  house.options.trees.clear();
  CHECK(collect_content(house.store, house.options).blobs == 0);
  CHECK(fs::exists(house.store.bundle(running) / "file-0"));
}

TEST_CASE("what broke off half way goes after a day, not while somebody is at it") {
  House house;
  house.put("x", 0s);
  const fs::path incoming = house.store.root() / "incoming";
  const auto begin = [&](char name, std::chrono::seconds age) {
    const fs::path path = incoming / std::string(64, name);
    std::ofstream(path) << "half";
    House::changed(path, age);
    return path;
  };
  const fs::path old = begin('a', 30h);
  const fs::path recent = begin('b', 2h);
  const fs::path held = begin('c', 30h);
  const UniqueFd holder = open_file(held, O_RDWR);
  REQUIRE(::flock(holder.get(), LOCK_EX | LOCK_NB) == 0);
  const Collection done = collect_content(house.store, house.options);
  CHECK(done.partials == 1);
  CHECK(done.partial_bytes == 4);
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(recent));
  CHECK(fs::exists(held));
}

TEST_CASE("a tree that is missing keeps nobody from collecting, one that cannot be read does") {
  House house;
  const std::string unused = house.put("unused", 30h);
  house.options.trees = {std::string(64, '0')};
  CHECK(collect_content(house.store, house.options).blobs == 1);
  CHECK(collect_content(ContentStore(house.folder / "none"), house.options).blobs == 0);
  fs::create_directories(house.store.blob(std::string(64, '0')));  // reading it is an error of I/O
  house.put("unused", 30h);
  CHECK_THROWS_AS(collect_content(house.store, house.options), Error);
  CHECK(house.there(unused));
}

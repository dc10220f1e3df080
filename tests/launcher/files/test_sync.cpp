#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <system_error>

#include "launcher/core/error.hpp"
#include "launcher/files/blocks.hpp"
#include "tests/launcher/files/sync_world.hpp"
#include "tests/support/no_threads.hpp"

using namespace dtrain;
using namespace dtrain::testing;

TEST_CASE("a tree of every kind arrives as it is") {
  SyncWorld world;
  world.write("a", "alpha");
  world.write("folder/b", std::string(3000000, 'b'));
  world.write("folder/deep/er/c", "");
  world.write("with space/ä\n\xff", "name of any bytes");
  world.write("-rf", "dash");
  world.write("tool", "#!/bin/sh\n");
  fs::permissions(world.source() / "tool", fs::perms(0755));
  fs::permissions(world.source() / "a", fs::perms(0400));
  fs::create_directory(world.source() / "empty");
  fs::permissions(world.source() / "empty", fs::perms(0500));
  fs::create_symlink("folder/b", world.source() / "link");
  fs::create_symlink("/nowhere/at all", world.source() / "dangling");
  fs::create_hard_link(world.source() / "folder/b", world.source() / "folder/b2");
  const SyncOutcome first = world.sync();
  CHECK(first.complete());
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(first.mounts[0].files == 6);
  CHECK(first.mounts[0].target == fs::canonical(world.target()));
  struct stat one {};
  struct stat two {};
  ::stat((world.target() / "folder/b").c_str(), &one);
  ::stat((world.target() / "folder/b2").c_str(), &two);
  CHECK(one.st_ino == two.st_ino);
  CHECK(left_overs(world.home()).empty());
  CHECK(left_overs(world.state()).empty());

  const SyncOutcome again = world.sync();
  CHECK(again.mounts[0].nothing_done());
  CHECK(again.complete());
  CHECK(again.wire_bytes == 0);
}

TEST_CASE("one file changed: one file sent") {
  SyncWorld world;
  for (int i = 0; i < 50; ++i) world.write("f" + std::to_string(i), "content " + std::to_string(i));
  world.sync();
  world.write("f7", "something else");
  const SyncOutcome outcome = world.sync();
  CHECK(outcome.mounts[0].files == 1);
  CHECK(outcome.mounts[0].sent_paths == std::vector<std::string>{"f7"});
  CHECK(picture(world.source()) == picture(world.target()));
}

TEST_CASE("only the time or the mode changed: no content is sent") {
  SyncWorld world;
  world.write("f", "content");
  world.write("g", "content");
  world.sync();
  fs::last_write_time(world.source() / "f",
                      fs::file_time_type::clock::now() - std::chrono::hours(5));
  fs::permissions(world.source() / "g", fs::perms(0711));
  const SyncOutcome outcome = world.sync();
  CHECK(outcome.mounts[0].files == 0);
  CHECK(outcome.mounts[0].touched == 2);
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(world.sync().mounts[0].nothing_done());
}

TEST_CASE("what is gone here goes there, if it is ours and as it was") {
  SyncWorld world;
  world.write("gone/a", "1");
  world.write("gone/b", "2");
  world.write("changed", "3");
  world.write("stays", "4");
  world.sync();
  world.write_there("gone/theirs", "somebody's");
  world.write_there("changed", "by somebody");
  fs::remove_all(world.source() / "gone");
  fs::remove(world.source() / "changed");
  SUBCASE("with remove") {
    const SyncOutcome outcome = world.sync();
    CHECK_FALSE(fs::exists(world.target() / "gone/a"));
    CHECK_FALSE(fs::exists(world.target() / "gone/b"));
    CHECK(world.read_there("gone/theirs") == "somebody's");
    CHECK(world.read_there("changed") == "by somebody");
    CHECK(world.read_there("stays") == "4");
    CHECK(outcome.mounts[0].removed == 2);
    CHECK(outcome.mounts[0].left_count == 2);
    CHECK_FALSE(outcome.complete());
    // What was left is no longer ours, and so no longer spoken of.
    CHECK(world.sync().complete());
  }
  SUBCASE("without") {
    world.mount.remove = false;
    CHECK(world.sync().mounts[0].removed == 0);
    CHECK(world.read_there("gone/a") == "1");
    world.mount.remove = true;
    CHECK(world.sync().mounts[0].removed == 2);
  }
}

TEST_CASE("a home is never emptied") {
  SyncWorld world;
  world.write("mine", "1");
  write_file(world.home() / ".bashrc", "theirs");
  write_file(world.home() / "work/thesis.tex", "years");
  world.mount.target = "~";
  world.sync();
  fs::remove(world.source() / "mine");
  CHECK(world.sync().mounts[0].removed == 1);
  CHECK(slurp(world.home() / ".bashrc") == "theirs");
  CHECK(slurp(world.home() / "work/thesis.tex") == "years");
  CHECK(left_overs(world.home()).empty());
}

TEST_CASE("files that no sync wrote are left and named") {
  SyncWorld world;
  world.write("same", "equal");
  world.write("other", "ours");
  world.write("longer", "ours is longer");
  world.write("folder/f", "1");
  world.write("link-there/f", "2");
  fs::create_symlink("ours", world.source() / "link");
  world.write_there("same", "equal");
  world.write_there("other", "thei");
  world.write_there("longer", "their");
  world.write_there("folder", "a file in place of a folder");
  fs::create_directory(world.home() / "elsewhere");
  fs::create_directory_symlink(world.home() / "elsewhere", world.target() / "link-there");
  fs::create_symlink("theirs", world.target() / "link");
  const SyncOutcome outcome = world.sync();
  CHECK(world.read_there("other") == "thei");
  CHECK(world.read_there("longer") == "their");
  CHECK(world.read_there("folder") == "a file in place of a folder");
  CHECK(fs::read_symlink(world.target() / "link") == "theirs");
  CHECK(fs::is_empty(world.home() / "elsewhere"));
  CHECK(outcome.mounts[0].left_count == 5);
  CHECK_FALSE(outcome.complete());
  // "same" is what is wanted, but stays somebody else's.
  fs::remove(world.source() / "same");
  world.sync();
  CHECK(world.read_there("same") == "equal");

  world.mount.overwrite = true;
  world.sync();
  CHECK(world.read_there("other") == "ours");
  CHECK(world.read_there("longer") == "ours is longer");
  CHECK(world.read_there("folder/f") == "1");
  CHECK(fs::read_symlink(world.target() / "link") == "ours");
  CHECK(fs::is_empty(world.home() / "elsewhere"));
}

TEST_CASE("a file of ours that was changed there") {
  SyncWorld world;
  world.write("f", "one");
  world.write("g", "one");
  world.write("h", "one");
  world.sync();
  world.write_there("f", "theirs");
  fs::remove(world.target() / "h");
  world.write("f", "two");
  SyncOutcome outcome = world.sync();
  CHECK(world.read_there("f") == "theirs");
  CHECK(world.read_there("h") == "one");  // what was only removed comes back
  REQUIRE(outcome.mounts[0].left.size() == 1);
  CHECK(outcome.mounts[0].left[0].path == "f");
  CHECK(outcome.mounts[0].left[0].reason == "was changed there");
  // It is named again until it is settled.
  CHECK(world.sync().mounts[0].left_count == 1);
  SUBCASE("it became what the source has") {
    world.write_there("f", "two");
    CHECK(world.sync().complete());
    world.write("f", "three");
    CHECK(world.sync().complete());
    CHECK(world.read_there("f") == "three");
  }
  SUBCASE("it was removed") {
    fs::remove(world.target() / "f");
    CHECK(world.sync().complete());
    CHECK(world.read_there("f") == "two");
  }
  SUBCASE("overwrite") {
    world.mount.overwrite = true;
    CHECK(world.sync().complete());
    CHECK(world.read_there("f") == "two");
  }
}

TEST_CASE("a file that became what the source has is known by that content") {
  SyncWorld world;
  world.write("f", "one");
  world.sync();
  world.write("f", "two");
  world.write_there("f", "two");
  CHECK(world.sync().complete());
  world.write("f", "one");
  CHECK(world.sync().complete());
  CHECK(world.read_there("f") == "one");
}

TEST_CASE("a file of another mode than the source's") {
  SyncWorld world;
  world.write("tool", "#!/bin/sh\n");
  fs::permissions(world.source() / "tool", fs::perms(0755));
  const auto mode_there = [&] { return fs::status(world.target() / "tool").permissions(); };
  SUBCASE("that no sync wrote") {
    world.write_there("tool", "#!/bin/sh\n");
    fs::permissions(world.target() / "tool", fs::perms(0644));
    const SyncOutcome outcome = world.sync();
    CHECK_FALSE(outcome.complete());
    REQUIRE(outcome.mounts[0].left.size() == 1);
    CHECK(outcome.mounts[0].left[0].path == "tool");
    CHECK(outcome.mounts[0].left[0].reason == "has another mode there");
    CHECK(mode_there() == fs::perms(0644));
    world.mount.overwrite = true;
    const SyncOutcome mended = world.sync();
    CHECK(mended.complete());
    CHECK(mended.mounts[0].touched == 1);
    CHECK(mended.mounts[0].files == 0);
    CHECK(mode_there() == fs::perms(0755));
    world.mount.overwrite = false;
    CHECK(world.sync().complete());
    // It is not ours for that.
    world.write("tool", "#!/bin/bash\n");
    CHECK_FALSE(world.sync().complete());
    CHECK(world.read_there("tool") == "#!/bin/sh\n");
    world.mount.overwrite = true;
    CHECK(world.sync().complete());
  }
  SUBCASE("of ours, and nothing changed here") {
    world.sync();
    fs::permissions(world.target() / "tool", fs::perms(0600));
    const SyncOutcome outcome = world.sync();
    CHECK(outcome.complete());
    CHECK(outcome.mounts[0].touched == 1);
    CHECK(outcome.mounts[0].files == 0);
  }
  SUBCASE("of ours, and something else changed here") {
    world.sync();
    fs::permissions(world.target() / "tool", fs::perms(0600));
    world.write("other", "1");
    const SyncOutcome outcome = world.sync();
    CHECK(outcome.complete());
    CHECK(outcome.mounts[0].touched == 1);
    CHECK(outcome.mounts[0].files == 1);
  }
  CHECK(mode_there() == fs::perms(0755));
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(world.sync().mounts[0].nothing_done());
}

TEST_CASE("a changed file there is noticed though nothing changed here") {
  SyncWorld world;
  world.write("f", "one");
  world.write("d/g", "one");
  world.sync();
  SUBCASE("wiped") {
    fs::remove_all(world.target());
    CHECK(world.sync().mounts[0].files == 2);
    CHECK(world.read_there("d/g") == "one");
  }
  SUBCASE("changed") {
    world.write_there("f", "theirs");
    CHECK(world.sync().mounts[0].left_count == 1);
  }
}

TEST_CASE("one kind becomes another") {
  SyncWorld world;
  world.write("file-to-folder", "1");
  world.write("folder-to-file/a", "1");
  world.write("folder-to-file/sub/b", "1");
  world.write("folder-to-link/a", "1");
  world.write("held/a", "1");
  fs::create_symlink("a", world.source() / "link-to-folder");
  fs::create_symlink("a", world.source() / "link-to-file");
  world.write("file-to-link", "1");
  world.sync();
  for (const char* name : {"file-to-folder", "folder-to-file", "folder-to-link", "link-to-folder",
                           "link-to-file", "file-to-link", "held"}) {
    fs::remove_all(world.source() / name);
  }
  world.write("file-to-folder/x", "2");
  world.write("folder-to-file", "2");
  fs::create_symlink("x", world.source() / "folder-to-link");
  world.write("link-to-folder/y", "2");
  world.write("link-to-file", "2");
  fs::create_symlink("y", world.source() / "file-to-link");
  world.write("held", "2");
  world.write_there("held/theirs", "theirs");
  const SyncOutcome outcome = world.sync();
  REQUIRE(outcome.mounts[0].left.size() == 1);
  CHECK(outcome.mounts[0].left[0].path == "held");
  CHECK(world.read_there("held/theirs") == "theirs");
  fs::remove(world.source() / "held");
  fs::remove_all(world.target() / "held");
  CHECK(picture(world.source()) == picture(world.target()));
  world.sync();
  CHECK(world.sync().mounts[0].nothing_done());
}

TEST_CASE("hard links") {
  SyncWorld world;
  world.write("a", "1");
  world.write("z", "1");
  world.sync();
  fs::remove(world.source() / "z");
  fs::create_hard_link(world.source() / "a", world.source() / "z");
  world.sync();
  CHECK(fs::hard_link_count(world.target() / "a") == 2);
  CHECK(world.sync().mounts[0].nothing_done());
  // The first of the names is somebody else's: the second is a file by itself.
  fs::remove_all(world.target());
  world.write_there("a", "theirs");
  CHECK(world.sync().mounts[0].left_count == 1);
  CHECK(world.read_there("z") == "1");
  CHECK(world.read_there("a") == "theirs");
  CHECK(fs::hard_link_count(world.target() / "a") == 1);
}

TEST_CASE("sparse files stay sparse") {
  SyncWorld world;
  const auto make = [&](const std::string& name, off_t size, std::initializer_list<off_t> data) {
    const UniqueFd fd = open_file(world.source() / name, O_WRONLY | O_CREAT);
    REQUIRE(::ftruncate(fd.get(), size) == 0);
    for (const off_t at : data) REQUIRE(::pwrite(fd.get(), "data", 4, at) == 4);
  };
  make("hole", off_t{40} << 20, {});
  make("middle", off_t{40} << 20, {off_t{20} << 20});
  make("ends", off_t{40} << 20, {0, (off_t{40} << 20) - 4});
  make("many", off_t{8} << 20, {1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20, 6 << 20});
  make("small", 200000, {100000});
  const SyncOutcome outcome = world.sync();
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(outcome.wire_bytes < 200000);
  for (const char* name : {"hole", "middle", "ends", "many"}) {
    struct stat there {};
    REQUIRE(::stat((world.target() / name).c_str(), &there) == 0);
    CHECK(there.st_blocks * 512 < there.st_size / 4);
  }
}

TEST_CASE("one file as a mount") {
  SyncWorld world;
  write_file(world.source() / "train.yaml", "1");
  world.mount.source = world.source() / "train.yaml";
  SUBCASE("under another name") {
    world.mount.target = "~/conf/job.yaml";
    world.sync();
    CHECK(slurp(world.home() / "conf/job.yaml") == "1");
    CHECK(world.sync().mounts[0].nothing_done());
    write_file(world.source() / "train.yaml", "two");
    CHECK(world.sync().mounts[0].files == 1);
    CHECK(slurp(world.home() / "conf/job.yaml") == "two");
  }
  SUBCASE("into a folder that is there") {
    fs::create_directory(world.home() / "conf");
    world.mount.target = "~/conf";
    world.sync();
    CHECK(slurp(world.home() / "conf/train.yaml") == "1");
  }
  SUBCASE("into a folder by its slash") {
    world.mount.target = "conf/";
    world.sync();
    CHECK(slurp(world.home() / "conf/train.yaml") == "1");
  }
  SUBCASE("into the home") {
    world.mount.target = "~";
    world.sync();
    CHECK(slurp(world.home() / "train.yaml") == "1");
  }
  SUBCASE("through a link here") {
    fs::create_symlink("train.yaml", world.source() / "link.yaml");
    world.mount.source = world.source() / "link.yaml";
    world.mount.target = "~/job.yaml";
    world.sync();
    CHECK(slurp(world.home() / "job.yaml") == "1");
  }
}

TEST_CASE("several mounts in one go") {
  SyncWorld world;
  world.write("code/main.cpp", "int main() {}");
  world.write("data/set", "123");
  write_file(world.source() / "note", "n");
  SyncMount code = world.mount;
  code.source = world.source() / "code";
  code.target = "~/code";
  SyncMount data = code;
  data.source = world.source() / "data";
  data.target = (world.home() / "abs/data").string();
  SyncMount note = code;
  note.source = world.source() / "note";
  note.target = "notes/";
  SyncOutcome outcome = world.sync({code, data, note});
  CHECK(slurp(world.home() / "code/main.cpp") == "int main() {}");
  CHECK(slurp(world.home() / "abs/data/set") == "123");
  CHECK(slurp(world.home() / "notes/note") == "n");
  world.write("data/set", "1234");
  outcome = world.sync({code, data, note});
  CHECK(outcome.mounts[0].nothing_done());
  CHECK(outcome.mounts[1].files == 1);
  CHECK(outcome.mounts[2].nothing_done());
  data.target = "~/code/../code";
  CHECK_THROWS_WITH_AS(world.sync({code, data}), doctest::Contains("the same place"), Error);
}

TEST_CASE("a dry run says what would be done and does nothing") {
  SyncWorld world;
  world.write("a", "1");
  world.write("b", "1");
  world.sending.dry_run = true;
  SyncOutcome outcome = world.sync();
  CHECK(outcome.dry_run);
  CHECK(outcome.mounts[0].sent_paths == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(fs::exists(world.target()));
  world.sending.dry_run = false;
  world.sync();
  world.write("a", "22");
  fs::remove(world.source() / "b");
  world.sending.dry_run = true;
  const std::string before = picture(world.target());
  outcome = world.sync();
  CHECK(outcome.mounts[0].sent_paths == std::vector<std::string>{"a"});
  CHECK(outcome.mounts[0].removed_paths == std::vector<std::string>{"b"});
  CHECK(picture(world.target()) == before);
}

TEST_CASE("what sync does not carry is named") {
  SyncWorld world;
  world.write("f", "1");
  world.write("suid", "1");
  fs::permissions(world.source() / "suid", fs::perms(04755));
  REQUIRE(::mkfifo((world.source() / "pipe").c_str(), 0600) == 0);
  const SyncOutcome outcome = world.sync();
  REQUIRE(outcome.mounts[0].left_out.size() == 2);
  CHECK(outcome.mounts[0].left_out[0].path == "pipe");
  CHECK(outcome.mounts[0].left_out[1].path == "suid");
  CHECK(picture(world.target()).find("suid") == std::string::npos);
}

TEST_CASE("excludes and filter files") {
  SyncWorld world;
  world.write("keep.cpp", "1");
  world.write("drop.o", "1");
  world.write("build/x", "1");
  world.write("sub/.gitignore", "*.log\n!keep.log\n");
  world.write("sub/a.log", "1");
  world.write("sub/keep.log", "1");
  world.mount.exclude = {"*.o", "/build/"};
  world.mount.filter_files = {".gitignore"};
  world.sync();
  CHECK(fs::exists(world.target() / "keep.cpp"));
  CHECK(fs::exists(world.target() / "sub/keep.log"));
  CHECK_FALSE(fs::exists(world.target() / "drop.o"));
  CHECK_FALSE(fs::exists(world.target() / "build"));
  CHECK_FALSE(fs::exists(world.target() / "sub/a.log"));
}

TEST_CASE("folders that may not be written in") {
  // As root such a folder stops nobody; the modes are right all the same.
  SyncWorld world;
  world.write("shut/f", "1");
  world.write("shut/in/g", "1");
  fs::permissions(world.source() / "shut/in", fs::perms(0555));
  fs::permissions(world.source() / "shut", fs::perms(0555));
  world.sync();
  CHECK(picture(world.source()) == picture(world.target()));
  fs::permissions(world.source() / "shut", fs::perms(0755));
  world.write("shut/f", "two");
  fs::permissions(world.source() / "shut", fs::perms(0555));
  world.sync();
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(world.sync().mounts[0].nothing_done());
  CHECK(remove_synced(world.state()).empty());
  CHECK_FALSE(fs::exists(world.target()));
  for (const char* name : {"shut", "shut/in"}) {
    fs::permissions(world.source() / name, fs::perms(0755));
  }
}

TEST_CASE("removal of all that syncs wrote") {
  SyncWorld world;
  world.write("d/a", "1");
  world.write("d/b", "1");
  fs::create_symlink("a", world.source() / "d/link");
  world.mount.target = "~/deep/er/x";
  write_file(world.home() / "deep/theirs", "1");
  world.sync();
  SUBCASE("as they were written") {
    CHECK(remove_synced(world.state()).empty());
    CHECK_FALSE(fs::exists(world.home() / "deep/er"));
  }
  SUBCASE("one was changed") {
    write_file(world.home() / "deep/er/x/d/a", "changed");
    const auto left = remove_synced(world.state());
    REQUIRE(left.size() == 2);  // and its folder
    CHECK(slurp(world.home() / "deep/er/x/d/a") == "changed");
    CHECK_FALSE(fs::exists(world.home() / "deep/er/x/d/b"));
  }
  CHECK(slurp(world.home() / "deep/theirs") == "1");
}

TEST_CASE("errors of either side reach both") {
  SyncWorld world;
  world.write("f", "1");
  SUBCASE("no source") {
    world.mount.source = world.source() / "nothing";
    CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("nothing"), Error);
  }
  SUBCASE("a target that is a file") {
    write_file(world.home() / "x", "a file");
    CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("is not a folder"), Error);
  }
  SUBCASE("a target below a link that leads nowhere") {
    fs::create_symlink(world.home() / "purged", world.home() / "x");
    SUBCASE("the link itself") {}
    SUBCASE("below it") {
      world.mount.target = "~/x/y";
    }
    SUBCASE("one file") {
      world.mount.source = world.source() / "f";
      world.mount.target = "~/x/f";
    }
    CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("x is a link that leads nowhere"), Error);
    CHECK_FALSE(fs::exists(world.home() / "purged"));
  }
  SUBCASE("names that no message holds") {
    const std::string bytes = "caf\xe9";
    SUBCASE("of one file") {
      world.write(bytes, "1");
      world.mount.source = world.source() / bytes;
      SUBCASE("into a folder") {
        world.mount.target = "~/";
      }
      SUBCASE("under another name") {}
    }
    SUBCASE("of a target") {
      world.mount.target = "~/" + bytes;
    }
    CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("caf\\xe9 is not UTF-8"), Error);
    CHECK(fs::is_empty(world.home()));
  }
  SUBCASE("another user's home") {
    world.mount.target = "~root/x";
    CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("another user's home"), Error);
  }
  SUBCASE("too many bytes for the disk") {
    const UniqueFd fd = open_file(world.source() / "huge", O_WRONLY | O_CREAT);
    REQUIRE(::ftruncate(fd.get(), off_t{1} << 43) == 0);
    // A file of holes takes nothing: no refusal before it is sent.
    world.sending.dry_run = true;
    CHECK(world.sync().mounts[0].files == 2);
  }
  CHECK(left_overs(world.home()).empty());
}

TEST_CASE("a pipeline ends where one of its threads cannot be made") {
  BoundedQueue<std::string> queue(1);
  std::exception_ptr failure;
  const auto failed = [&](std::exception_ptr error) {
    if (!failure) failure = error;
    queue.fail(error);
  };
  const auto read = [&] {
    try {
      while (queue.pop()) {
      }
    } catch (const std::system_error&) {  // the other's
    }
  };
  Stage first(read, failed);
  std::optional<Stage> second;
  {
    const NoThreads none;
    CHECK_NOTHROW(second.emplace([] {}, failed));
  }
  CHECK(failure);
  queue.close();
}

TEST_CASE("a request names only what a message holds") {
  const UniqueFd null = open_file("/dev/null", O_RDWR);
  FramedStream stream(null.get(), null.get());
  SyncMount mount;
  mount.source = "data";
  CHECK_NOTHROW(request_send(stream, {mount}, false));
  SUBCASE("a source") {
    mount.source = "caf\xe9.csv";
  }
  SUBCASE("a pattern") {
    mount.exclude = {"caf\xe9.csv"};
  }
  CHECK_THROWS_WITH_AS(request_send(stream, {mount}, false), doctest::Contains("is not UTF-8"),
                       Error);
}

TEST_CASE("random trees, again and again") {
  SyncWorld world;
  std::mt19937 random(20261121);
  const auto pick = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const std::vector<std::string> names{"a", "a-b", "b", "c.d", "d"};
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    for (int change = 0; change < 12; ++change) {
      fs::path path = world.source();
      for (int depth = pick(3); depth >= 0; --depth) {
        path /= names[static_cast<std::size_t>(pick(5))];
        if (depth > 0 && !fs::is_directory(fs::symlink_status(path))) {
          fs::remove_all(path);
          fs::create_directory(path);
        }
      }
      switch (pick(6)) {
        case 0:
          fs::remove_all(path);
          break;
        case 1:
          fs::remove_all(path);
          fs::create_symlink(names[static_cast<std::size_t>(pick(5))], path);
          break;
        case 2:
          if (!fs::is_directory(fs::symlink_status(path))) fs::remove_all(path);
          fs::create_directories(path);
          break;
        case 3:
          if (fs::is_regular_file(fs::symlink_status(path))) {
            fs::permissions(path, fs::perms(pick(2) == 0 ? 0755 : 0640));
          }
          break;
        default:
          fs::remove_all(path);
          write_file(path, std::string(static_cast<std::size_t>(pick(2000)), 'x') +
                               std::to_string(random()));
      }
    }
    const SyncOutcome outcome = world.sync();
    CHECK(outcome.complete());
    REQUIRE(picture(world.source()) == picture(world.target()));
    REQUIRE(world.sync().mounts[0].nothing_done());
  }
}

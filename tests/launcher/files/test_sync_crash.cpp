#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/files/archive.hpp"
#include "launcher/files/beneath.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/record.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/sync_wire.hpp"
#include "launcher/files/tree.hpp"
#include "tests/launcher/files/sync_world.hpp"

using namespace dtrain;
using namespace dtrain::testing;

namespace {

constexpr int kKilled = 77;

// Syncs with a receiver in a process of its own, which ends without a word at its step `kill_at`.
// True when it was killed.
bool sync_and_kill(SyncWorld& world, int kill_at) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    int steps = 0;
    world.receiving.hook = [&](const char*) {
      if (steps++ == kill_at) ::_exit(kKilled);
    };
    try {
      FramedStream stream(ends[1], ends[1]);
      receive_trees(stream, world.receiving);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  const UniqueFd ours(ends[0]);
  FramedStream stream(ours.get(), ours.get());
  try {
    send_trees(stream, {world.mount}, world.sending);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unreachable);
  }
  const ProcessExit exit = wait(child);
  REQUIRE((exit.code == kKilled || exit.code == 0));
  return exit.code == kKilled;
}

void first_state(const SyncWorld& world) {
  world.write("same", "same");
  world.write("changes", "before");
  world.write("gone/a", "1");
  world.write("gone/b", "2");
  world.write("to-folder", "1");
  world.write("to-file/x", "1");
  world.write("touched", "t");
  world.write("mode", "m");
  fs::create_symlink("a", world.source() / "link");
  world.write("shut/f", "1");
  fs::permissions(world.source() / "shut", fs::perms(0555));
}

void second_state(const SyncWorld& world) {
  world.write("changes", "after!");
  fs::remove_all(world.source() / "gone");
  fs::remove_all(world.source() / "to-folder");
  world.write("to-folder/y", "2");
  fs::remove_all(world.source() / "to-file");
  world.write("to-file", "2");
  fs::last_write_time(world.source() / "touched",
                      fs::file_time_type::clock::now() - std::chrono::hours(9));
  fs::permissions(world.source() / "mode", fs::perms(0700));
  fs::remove(world.source() / "link");
  fs::create_symlink("b", world.source() / "link");
  world.write("new/deep/f", "new");
  fs::create_hard_link(world.source() / "new/deep/f", world.source() / "new/deep/g");
  fs::permissions(world.source() / "shut", fs::perms(0755));
  world.write("shut/f", "two");
  fs::permissions(world.source() / "shut", fs::perms(0555));
}

}  // namespace

TEST_CASE("a crash at any step: a repeat finishes, and takes nobody's file") {
  int steps = 0;
  for (int kill_at = 0;; ++kill_at) {
    CAPTURE(kill_at);
    SyncWorld world;
    first_state(world);
    world.sync();
    second_state(world);
    const std::string before = picture(world.target());
    const bool killed = sync_and_kill(world, kill_at);
    if (kill_at == 0) CHECK(picture(world.target()).find("changes 644 6") != std::string::npos);
    // Somebody works there between the crash and the repeat.
    world.write_there("theirs", "theirs");
    const SyncOutcome outcome = world.sync();
    CHECK(outcome.complete());
    CHECK(world.read_there("theirs") == "theirs");
    fs::remove(world.target() / "theirs");
    REQUIRE(picture(world.source()) == picture(world.target()));
    CHECK(left_overs(world.home()).empty());
    CHECK(left_overs(world.state()).empty());
    CHECK(world.sync().mounts[0].nothing_done());
    // All of it is still ours.
    fs::permissions(world.source() / "shut", fs::perms(0755));
    fs::remove_all(world.source());
    fs::create_directory(world.source());
    world.sync();
    CHECK(fs::is_empty(world.target()));
    if (!killed) {
      steps = kill_at;
      break;
    }
  }
  CHECK(steps > 15);
}

TEST_CASE("a file that changes between a crash and its repeat is left") {
  SyncWorld world;
  world.write("a", "1");
  world.write("b", "1");
  world.sync();
  world.write("a", "22");
  world.write("b", "22");
  REQUIRE(sync_and_kill(world, 1));  // the journal is written, nothing renamed
  CHECK(world.read_there("a") == "1");
  world.write_there("b", "theirs");
  const SyncOutcome outcome = world.sync();
  CHECK(world.read_there("a") == "22");
  CHECK(world.read_there("b") == "theirs");
  CHECK(outcome.mounts[0].left_count == 1);
}

TEST_CASE("a look between a crash and its repeat loses nothing") {
  SyncWorld world;
  world.write("a", "1");
  world.sync();
  world.write("a", "22");
  world.write("b", "2");
  REQUIRE(sync_and_kill(world, 1));
  world.sending.dry_run = true;
  world.sync();
  world.sending.dry_run = false;
  world.sync();
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(left_overs(world.home()).empty());
}

TEST_CASE("removal after a crash at any step: all of ours goes, and nobody's file") {
  for (const bool first : {true, false}) {
    CAPTURE(first);
    bool killed = true;
    int kill_at = 0;
    for (; killed; ++kill_at) {
      CAPTURE(kill_at);
      SyncWorld world;
      first_state(world);
      if (!first) {
        world.sync();
        second_state(world);
      }
      killed = sync_and_kill(world, kill_at);
      world.write_there("theirs", "theirs");
      CHECK(remove_synced(world.state()).empty());
      CHECK(world.read_there("theirs") == "theirs");
      fs::remove(world.target() / "theirs");
      CHECK(fs::is_empty(world.target()));
      CHECK(fs::is_empty(world.state()));
      fs::permissions(world.source() / "shut", fs::perms(0755));
    }
    CHECK(kill_at > 10);
  }
}

TEST_CASE("removal after a crash leaves what was to be replaced and is somebody's") {
  SyncWorld world;
  world.write("a", "ours");
  world.write_there("a", "theirs");
  world.mount.overwrite = true;
  REQUIRE(sync_and_kill(world, 1));  // the journal is written, nothing renamed
  CHECK(remove_synced(world.state()) == std::vector<fs::path>{fs::canonical(world.target()) / "a"});
  CHECK(world.read_there("a") == "theirs");
  CHECK(left_overs(world.home()).empty());
}

TEST_CASE("the machine goes down: what did not reach its disk comes again") {
  SyncWorld world;
  world.write("whole", "content");
  world.write("empty-after", "content");
  world.write("zeros-after", "content");
  world.sync();
  // As another boot's, with files as a power cut leaves them: the time is right, the bytes are not.
  for (const fs::directory_entry& file : fs::directory_iterator(world.state())) {
    if (file.path().extension() != ".record") continue;
    sync::Record record = sync::decode_record(slurp(file.path()));
    record.boot = "another";
    write_file(file.path(), sync::encode_record(record));
  }
  for (const char* name : {"empty-after", "zeros-after"}) {
    const auto time = fs::last_write_time(world.target() / name);
    world.write_there(name, name[0] == 'e' ? "" : std::string(7, '\0'));
    fs::last_write_time(world.target() / name, time);
  }
  const SyncOutcome outcome = world.sync();
  CHECK(outcome.complete());
  CHECK(outcome.mounts[0].files == 2);
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(world.sync().mounts[0].nothing_done());
}

TEST_CASE("no space: nothing is changed, and the error says where") {
  SyncWorld world;
  fs::create_directory(world.target());
  if (::geteuid() != 0 || ::mount("none", world.target().c_str(), "tmpfs", 0, "size=4m") != 0) {
    MESSAGE("skipped: a file system to fill needs root");
    return;
  }
  world.write("before", "1");
  world.sync();
  const std::string before = picture(world.target());
  world.receiving.name = "node-3";
  SUBCASE("seen before it is sent") {
    world.write("before", "2");
    world.write("large", std::string(std::size_t{8} << 20, 'x'));
  }
  SUBCASE("seen while it comes: inodes and folders were not counted") {
    ::mount("none", world.target().c_str(), "tmpfs", MS_REMOUNT, "size=4m,nr_inodes=20");
    for (int i = 0; i < 40; ++i) world.write("f" + std::to_string(i), "x");
  }
  try {
    world.sync();
    CHECK(false);
  } catch (const Error& error) {
    CAPTURE(error.what());
    CHECK(error.code() == ErrorCode::exhausted);
    CHECK(std::string(error.what()).find(world.target().string()) != std::string::npos);
    CHECK(std::string(error.what()).find("node-3") != std::string::npos);
  }
  CHECK(picture(world.target()) == before);
  CHECK(left_overs(world.home()).empty());
  ::umount2(world.target().c_str(), MNT_DETACH);
}

TEST_CASE("another file system below the target") {
  SyncWorld world;
  fs::create_directories(world.target() / "mnt");
  if (::geteuid() != 0 || ::mount("none", (world.target() / "mnt").c_str(), "tmpfs", 0, "") != 0) {
    MESSAGE("skipped: another file system needs root");
    return;
  }
  world.write("mnt/f", "content");
  world.write("mnt/new/g", "content");
  fs::create_symlink("f", world.source() / "mnt/link");
  CHECK(world.sync().complete());
  CHECK(picture(world.source() / "mnt") == picture(world.target() / "mnt"));
  world.write("mnt/f", "other content");
  CHECK(world.sync().complete());
  CHECK(world.read_there("mnt/f") == "other content");
  CHECK(world.sync().mounts[0].nothing_done());
  CHECK(left_overs(world.home()).empty());
  ::umount2((world.target() / "mnt").c_str(), MNT_DETACH);
}

namespace {

// A folder in which nothing can be made or removed, while this lives: by its mode, or for root by a
// mount.
class Shut {
 public:
  explicit Shut(fs::path folder) : folder_(std::move(folder)) {
    if (::geteuid() != 0) {
      done_ = ::chmod(folder_.c_str(), 0555) == 0;
    } else if (::mount(folder_.c_str(), folder_.c_str(), nullptr, MS_BIND, nullptr) == 0) {
      mounted_ = true;
      done_ =
          ::mount("none", folder_.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
    }
    if (!done_) MESSAGE("skipped: a folder that is read-only for root needs mount(2)");
  }
  ~Shut() {
    if (mounted_) {
      ::umount2(folder_.c_str(), MNT_DETACH);
    } else {
      ::chmod(folder_.c_str(), 0755);
    }
  }
  Shut(const Shut&) = delete;
  Shut& operator=(const Shut&) = delete;
  explicit operator bool() const { return done_; }

 private:
  fs::path folder_;
  bool mounted_ = false;
  bool done_ = false;
};

}  // namespace

TEST_CASE("a step that cannot be done is told, and stands before no other sync") {
  SyncWorld world;
  world.write("b", "1");
  world.sync();
  fs::create_directory(world.target() / "out");  // somebody's
  world.write("b", "22");
  world.write("out/x", "1");
  world.write("out/y", "1");
  {
    const Shut shut(world.target() / "out");
    if (!shut) return;
    SUBCASE("the sync itself") {
      for (int i = 0; i < 2; ++i) {
        CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("out/x"), Error);
        CHECK(world.read_there("b") == "22");  // all else is done
        CHECK(left_overs(world.home()).empty());
        CHECK(left_overs(world.state()).empty());
      }
    }
    SUBCASE("a repeat of one that was cut") {
      REQUIRE(sync_and_kill(world, 1));
    }
    world.mount.exclude = {"out"};
    CHECK(world.sync().complete());
    CHECK(world.read_there("b") == "22");
    CHECK(left_overs(world.home()).empty());
    CHECK(left_overs(world.state()).empty());
  }
  world.mount.exclude.clear();
  CHECK(world.sync().complete());
  CHECK(picture(world.source()) == picture(world.target()));
}

TEST_CASE("a step that cannot be done in one target keeps no other from its end") {
  SyncWorld world;
  fs::create_directories(world.home() / "a/out");
  world.write("a/out/x", "1");
  world.write("b/f", "1");
  SyncMount a = world.mount;
  a.source = world.source() / "a";
  a.target = "~/a";
  SyncMount b = world.mount;
  b.source = world.source() / "b";
  b.target = "~/b";
  const Shut shut(world.home() / "a/out");
  if (!shut) return;
  CHECK_THROWS_WITH_AS(world.sync({a, b}), doctest::Contains("out/x"), Error);
  CHECK(slurp(world.home() / "b/f") == "1");
  CHECK(left_overs(world.home()).empty());
  CHECK(left_overs(world.state()).empty());
}

TEST_CASE("what could not be replaced or removed is still ours") {
  SyncWorld world;
  for (const char* name : {"d/gone", "d/stays", "d/changes"}) world.write(name, "1");
  world.sync();
  fs::remove(world.source() / "d/gone");
  world.write("d/changes", "22");
  {
    const Shut shut(world.target() / "d");
    if (!shut) return;
    CHECK_THROWS_WITH_AS(world.sync(), doctest::Contains("1 more could not be done"), Error);
    CHECK(left_overs(world.state()).empty());
  }
  const SyncOutcome outcome = world.sync();
  CHECK(outcome.complete());
  CHECK(outcome.mounts[0].removed == 1);
  CHECK(picture(world.source()) == picture(world.target()));
}

TEST_CASE("a folder that becomes a link meanwhile leads nowhere") {
  for (const bool walk : {false, true}) {
    CAPTURE(walk);
    SyncWorld world;
    world.receiving.without_openat2 = walk;
    const fs::path outside = world.home() / "outside";
    write_file(outside / "f", "theirs");
    world.write("d/f", "1");
    world.write("d/g", "1");
    world.sync();
    world.write("d/f", "22");
    world.write("d/new", "22");
    fs::remove(world.source() / "d/g");
    // After all is staged and before the first file is renamed.
    bool swapped = false;
    world.receiving.hook = [&](const char* step) {
      if (swapped || std::string(step) != "operation") return;
      swapped = true;
      fs::rename(world.target() / "d", world.target() / "was-d");
      fs::create_directory_symlink(outside, world.target() / "d");
    };
    const SyncOutcome outcome = world.sync();
    CHECK(swapped);
    CHECK(slurp(outside / "f") == "theirs");
    CHECK_FALSE(fs::exists(outside / "new"));
    CHECK_FALSE(outcome.complete());
    world.receiving.hook = nullptr;
    world.sync();
    CHECK(slurp(outside / "f") == "theirs");
    CHECK_FALSE(fs::exists(outside / "new"));
  }
}

TEST_CASE("links are swapped in all the time") {
  SyncWorld world;
  const fs::path outside = world.home() / "outside";
  fs::create_directory(outside);
  for (int i = 0; i < 30; ++i) world.write("d/f" + std::to_string(i), "0");
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    std::error_code ignored;
    while (!stop) {
      fs::rename(world.target() / "d", world.target() / "e", ignored);
      fs::create_directory_symlink(outside, world.target() / "d", ignored);
      fs::remove(world.target() / "d", ignored);
      fs::rename(world.target() / "e", world.target() / "d", ignored);
    }
  });
  for (int round = 0; round < 30; ++round) {
    world.write("d/f" + std::to_string(round), std::to_string(round) + " more");
    try {
      world.sync();
    } catch (const Error&) {
    }
  }
  stop = true;
  attacker.join();
  CHECK(fs::is_empty(outside));
}

TEST_CASE("a file that changes while it is read is left out and named") {
  SyncWorld world;
  world.write("steady", "1");
  world.write("a-large", std::string(std::size_t{64} << 20, 'a'));
  std::atomic<bool> stop{false};
  std::atomic<int> wrote{0};
  std::thread writer([&] {
    std::ofstream out(world.source() / "a-large", std::ios::app);
    while (!stop) {
      out << "more" << std::flush;
      ++wrote;
    }
  });
  while (wrote == 0) std::this_thread::yield();
  const SyncOutcome outcome = world.sync();
  stop = true;
  writer.join();
  CHECK(outcome.mounts[0].changing == std::vector<std::string>{"a-large"});
  CHECK(world.read_there("steady") == "1");
  CHECK_FALSE(fs::exists(world.target() / "a-large"));
  CHECK(world.sync().complete());
  CHECK(picture(world.source()) == picture(world.target()));
}

// ---- what a hostile other side may send

namespace {

using sync::json;

// Plays the sender; gives the receiver's Error.
std::string hostile(SyncWorld& world, const std::function<void(sync::Wire&)>& play) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  std::string said;
  std::thread receiver([&] {
    FramedStream stream(theirs.get(), theirs.get());
    try {
      receive_trees(stream, world.receiving);
      said = "nothing wrong";
    } catch (const Error& error) {
      said = error.message();
    }
    theirs.reset();
  });
  FramedStream stream(ours.get(), ours.get());
  {
    sync::Wire wire(stream, std::chrono::seconds(20));
    try {
      play(wire);
      wire.next();
    } catch (const Error&) {
    }
    try {
      wire.done();
    } catch (const Error&) {
    }
  }
  ::shutdown(ours.get(), SHUT_WR);
  receiver.join();
  return said;
}

json hello(const std::string& tree, const std::string& target = "~/x") {
  Sha256 sum;
  sum.add(tree);
  json mount = {{"target", target}, {"name", ""}, {"single", false}, {"tree", sum.hex()},
                {"entries", 1},     {"bytes", 1}, {"remove", true},  {"overwrite", true}};
  return {{"type", "sync"}, {"version", 1}, {"dry_run", false}, {"mounts", json::array({mount})}};
}

std::string one_file_tree(std::string name = "f") {
  Tree tree;
  TreeEntry entry;
  entry.path = std::move(name);
  entry.mode = 0644;
  entry.size = 4;
  tree.entries.push_back(entry);
  return encode_tree(tree);
}

}  // namespace

TEST_CASE("a hostile list of files") {
  SyncWorld world;
  const std::string good = one_file_tree();
  const auto with = [&](std::string tree) {
    return hostile(world, [&](sync::Wire& wire) {
      wire.say(hello(tree));
      wire.expect("need");
      wire.say({{"type", "tree"}, {"mount", 0}});
      wire.blob(tree);
    });
  };
  const auto replaced = [&](const std::string& name) {
    std::string tree = one_file_tree(std::string(name.size(), 'f'));
    const std::size_t at = tree.find(std::string(name.size(), 'f'));
    tree.replace(at, name.size(), name);
    return tree;
  };
  CHECK(with(replaced("..")).find("a name is no name") != std::string::npos);
  CHECK(with(replaced("/")).find("a name is no name") != std::string::npos);
  CHECK(with(replaced("a/../../b")).find("a name is no name") != std::string::npos);
  CHECK(with(replaced(std::string("a\0b", 3))).find("a name is no name") != std::string::npos);
  CHECK(with(replaced(".dtrain-sync-x")).find("sync itself uses") != std::string::npos);
  CHECK(with(good.substr(0, good.size() - 1)).find("damaged") != std::string::npos);
  CHECK(with(good + "x").find("damaged") != std::string::npos);
  CHECK(with("").find("damaged") != std::string::npos);
  Tree setuid;
  setuid.entries = {TreeEntry{"f", EntryKind::file, 0755, 0, 0, "", std::nullopt}};
  std::string bytes = encode_tree(setuid);
  const std::size_t mode = bytes.find("\xed\x03");  // 0755
  REQUIRE(mode != std::string::npos);
  bytes[mode + 1] = '\x13';  // 04755 and more
  CHECK(with(bytes).find("too large") != std::string::npos);
  CHECK_FALSE(fs::exists(world.home() / "x"));
}

TEST_CASE("a hostile archive") {
  SyncWorld world;
  const auto with = [&](const std::function<void(ArchiveWriter&)>& fill,
                        const std::function<void(std::string&)>& spoil = {}) {
    return hostile(world, [&](sync::Wire& wire) {
      const std::string tree = one_file_tree();
      wire.say(hello(tree));
      wire.expect("need");
      wire.say({{"type", "tree"}, {"mount", 0}});
      wire.blob(tree);
      wire.expect("want");
      wire.blob();
      wire.say({{"type", "archive"}, {"bytes", {4}}});
      std::string block(1, kPlainBlock);
      ArchiveWriter archive([&](std::string_view bytes) { block += bytes; });
      fill(archive);
      archive.finish();
      if (spoil) spoil(block);
      wire.bytes(block);
      wire.say({{"type", "sent"}, {"changing", json::array()}});
    });
  };
  const auto file = [](ArchiveName name, const std::string& content) {
    return [=](ArchiveWriter& archive) {
      archive.begin(name, content.size());
      archive.write(content);
    };
  };
  CHECK(with(file({0, 1}, "1234")).find("not asked for") != std::string::npos);
  CHECK(with(file({1, 0}, "1234")).find("not asked for") != std::string::npos);
  CHECK(with(file({0, 0}, "12345")).find("another size") != std::string::npos);
  CHECK(with([](ArchiveWriter&) {}).find("before all files") != std::string::npos);
  CHECK(with([&](ArchiveWriter& archive) {
          file({0, 0}, "1234")(archive);
          file({0, 0}, "1234")(archive);
        }).find("not asked for") != std::string::npos);
  // As links and devices, and under a path.
  const auto typed = [](char type) {
    return [type](std::string& block) {
      std::string head = block.substr(1, 512);
      head[156] = type;
      head.replace(148, 8, "        ");
      unsigned sum = 0;
      for (const char c : head) sum += static_cast<unsigned char>(c);
      char text[8];
      std::snprintf(text, sizeof text, "%06o", sum);
      head.replace(148, 7, text, 7);
      block.replace(1, 512, head);
    };
  };
  for (const char type : {'1', '2', '3', '4', '5', '6'}) {
    CAPTURE(type);
    const std::string said = with(file({0, 0}, "1234"), typed(type));
    CHECK(said.find("archive") != std::string::npos);
  }
  CHECK(with(file({0, 0}, "1234"), [](std::string& block) {
          block = "zgarbage";
        }).find("damaged") != std::string::npos);
  CHECK(with(file({0, 0}, "1234"), [](std::string& block) { block.resize(700); }).find("archive") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(world.home() / "x"));
  CHECK(left_overs(world.home()).empty());
  // And the one that is right.
  CHECK(with(file({0, 0}, "1234")) == "nothing wrong");
  CHECK(slurp(world.home() / "x/f") == "1234");
}

TEST_CASE("a sender that goes away in the middle leaves nothing behind") {
  SyncWorld world;
  const std::string said = hostile(world, [&](sync::Wire& wire) {
    const std::string tree = one_file_tree();
    wire.say(hello(tree));
    wire.expect("need");
    wire.say({{"type", "tree"}, {"mount", 0}});
    wire.blob(tree);
    wire.expect("want");
    wire.blob();
    wire.say({{"type", "archive"}, {"bytes", {4}}});
    throw Error(ErrorCode::failed, "gone");
  });
  CHECK(said != "nothing wrong");
  CHECK_FALSE(fs::exists(world.home() / "x"));
  CHECK(left_overs(world.home()).empty());
  for (const fs::directory_entry& file : fs::directory_iterator(world.state())) {
    CHECK(file.path().extension() != ".record");
  }
}

TEST_CASE("a receiver at home decides where things go") {
  SyncWorld world;
  world.write("f", "1");
  world.mount.target = "/etc/dtrain-must-not-be";
  world.receiving.targets = {world.home() / "here"};
  world.sync();
  CHECK(slurp(world.home() / "here/f") == "1");
  CHECK_FALSE(fs::exists("/etc/dtrain-must-not-be"));
}

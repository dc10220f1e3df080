#include "launcher/core/kept_log.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kLimit = 16 * kMiB;
constexpr std::size_t kLine = 100;  // bytes, its end too

std::string line_of(std::uint64_t number) {
  std::string line = std::to_string(number);
  line.resize(kLine - 1, 'x');
  return line + "\n";
}

// A log of so many whole lines, at least.
void grow(const fs::path& log, std::uint64_t bytes) {
  const UniqueFd fd = open_file(log, O_WRONLY | O_CREAT | O_APPEND);
  struct stat status {};
  REQUIRE(::fstat(fd.get(), &status) == 0);
  std::string text;
  std::uint64_t number = static_cast<std::uint64_t>(status.st_size) / kLine;
  while (text.size() < bytes) text += line_of(number++);
  write_all(fd.get(), text);
}

std::uint64_t size_of(const fs::path& log) {
  struct stat status {};
  REQUIRE(::stat(log.c_str(), &status) == 0);
  return static_cast<std::uint64_t>(status.st_size);
}

std::uint64_t on_disk(const fs::path& log) {
  struct stat status {};
  REQUIRE(::stat(log.c_str(), &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

// All that a reader gets who begins at `offset`, and where that begins.
KeptBytes all_of(const fs::path& log, std::uint64_t offset = 0) {
  const UniqueFd fd = open_file(log, O_RDONLY);
  KeptBytes all = read_kept(fd.get(), log, offset, 65536);
  while (true) {
    const KeptBytes more = read_kept(fd.get(), log, all.offset + all.bytes.size(), 65536);
    if (more.bytes.empty()) return all;
    all.bytes += more.bytes;
  }
}

}  // namespace

TEST_CASE("log limit: what is kept is a little less than the limit, in steps") {
  // size, released, safe, limit
  CHECK(release_point(100 * kMiB, 0, 100 * kMiB, 0) == 0);
  CHECK(release_point(16 * kMiB, 0, 16 * kMiB, kLimit) == 0);
  CHECK(release_point(16 * kMiB + 1, 0, 16 * kMiB + 1, kLimit) == kMiB);
  CHECK(release_point(17 * kMiB, kMiB, 17 * kMiB, kLimit) == kMiB);
  CHECK(release_point(100 * kMiB, 0, 100 * kMiB, kLimit) == 85 * kMiB);
  // Never what is not safe, and not for a few bytes.
  CHECK(release_point(100 * kMiB, 0, 10 * kMiB + 3, kLimit) == 10 * kMiB);
  CHECK(release_point(100 * kMiB, 10 * kMiB, 11 * kMiB - 1, kLimit) == 10 * kMiB);
  CHECK(release_point(100 * kMiB, 0, 0, kLimit) == 0);
  // A copy that has lost its end.
  CHECK(release_point(3 * kMiB, 10 * kMiB, 3 * kMiB, kLimit) == 10 * kMiB);
  const std::uint64_t large = std::uint64_t{1} << 30;
  CHECK(release_point(large + 1, 0, large + 1, large) == 64 * kMiB);
  CHECK(release_point(large + 64 * kMiB, 64 * kMiB, 2 * large, large) == 64 * kMiB);
}

TEST_CASE("log limit: the oldest lines go, offsets stay, and no hole is read") {
  const TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  CHECK(hold_to_limit(log, kLimit, kLimit).what == Release::What::nothing);  // it is not there yet
  grow(log, kLimit - kMiB);
  CHECK(hold_to_limit(log, kLimit, size_of(log)).what == Release::What::nothing);
  CHECK(released_of(log) == 0);
  std::uint64_t before = 0;
  for (int round = 0; round < 4; ++round) {
    grow(log, 5 * kMiB);
    const std::uint64_t size = size_of(log);
    CHECK(hold_to_limit(log, kLimit, size).what == Release::What::some);
    CHECK(size_of(log) == size);
    CHECK(on_disk(log) <= kLimit + kMiB);
    const std::uint64_t released = released_of(log);
    CHECK(released > before);
    CHECK(released % kLine == 0);  // whole lines
    CHECK(size - released <= kLimit);
    CHECK(size - released > kLimit - 2 * kMiB);
    const KeptBytes kept = all_of(log);
    CHECK(kept.offset == released);
    CHECK(kept.offset + kept.bytes.size() == size);
    CHECK(kept.bytes.starts_with(line_of(released / kLine)));
    CHECK(kept.bytes.find('\0') == std::string::npos);
    // Who stands before it goes on behind it, who stands behind it is not moved.
    CHECK(all_of(log, before + 7).offset == released);
    CHECK(all_of(log, released + 7).offset == released + 7);
    before = released;
  }
}

TEST_CASE("log limit: what the other side has not taken stays") {
  const TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  grow(log, 4 * kLimit);
  CHECK(hold_to_limit(log, kLimit, 0).what == Release::What::nothing);
  CHECK(hold_to_limit(log, kLimit, 3 * kMiB + 1).what == Release::What::some);
  CHECK(released_of(log) <= 3 * kMiB + 1);
  CHECK(released_of(log) > 3 * kMiB - kMiB / 8);
}

TEST_CASE("log limit: who was killed between the mark and the hole leaves it to the next") {
  const TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  grow(log, 2 * kLimit);
  mark_released(log, 10 * kMiB);
  // All can be read, and who reads from the beginning is right either way.
  CHECK(all_of(log).offset + all_of(log).bytes.size() == size_of(log));
  SUBCASE("which writes more") {
    grow(log, 5 * kMiB);
  }
  SUBCASE("which finds it, though nothing more is written") {
    mark_released(log, 16 * kMiB + 30);
  }
  CHECK(hold_to_limit(log, kLimit, size_of(log)).what == Release::What::some);
  CHECK(on_disk(log) <= kLimit + kMiB);
  CHECK(hold_to_limit(log, kLimit, size_of(log)).what == Release::What::nothing);
}

TEST_CASE("log limit: NULs that were written are read") {
  const TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  const std::string text("a\0\0b\n", 5);
  write_file_atomic(log, text);
  CHECK(all_of(log).bytes == text);
  const std::string nuls(2 * kLimit, '\0');
  write_file_atomic(log, nuls);
  CHECK(hold_to_limit(log, kLimit, nuls.size()).what == Release::What::some);
  CHECK(all_of(log).offset == released_of(log));
  CHECK(all_of(log).offset + all_of(log).bytes.size() == nuls.size());
}

TEST_CASE("log limit: a damaged mark is an error, and no offset") {
  const TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  for (const char* wrong : {"", "x\n", "-1\n", "99999999999999999999\n"}) {
    write_file_atomic(released_mark(log), wrong);
    CHECK_THROWS_AS(released_of(log), Error);
  }
}

TEST_CASE("log limit: where no holes can be made nothing is called released") {
  const TemporaryFolder folder;
  constexpr int kNotPossible = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    // ramfs knows no fallocate(2).
    const int spaces = CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER);
    if (::unshare(spaces) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.path().c_str(), "ramfs", 0, nullptr) != 0) {
      ::_exit(kNotPossible);
    }
    const fs::path log = folder / "0.out";
    write_all(open_file(log, O_WRONLY | O_CREAT).get(), std::string(kLimit + kMiB, 'x'));
    const Release done = hold_to_limit(log, kLimit, kLimit);
    const bool right = done.what == Release::What::impossible && !done.why.empty() &&
                       released_of(log) == 0 && size_of(log) == kLimit + kMiB;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPossible) {
    MESSAGE("not seen: no file system may be mounted here");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("log limit: a reader beside writer and release gets each line once, or is told") {
  const TemporaryFolder folder;
  const fs::path log = folder / "0.out";
  constexpr std::uint64_t kAll = 10 * kLimit;
  grow(log, kLine);
  std::atomic<bool> written{false};
  std::thread writer([&] {
    while (size_of(log) < kAll) grow(log, kMiB);
    written = true;
  });
  std::thread releases([&] {
    while (!written) hold_to_limit(log, kLimit, size_of(log));
  });
  const UniqueFd fd = open_file(log, O_RDONLY);
  std::uint64_t at = 0;
  std::uint64_t missing = 0;
  std::uint64_t right = 0;
  bool over = false;
  while (true) {
    const bool last = over;
    over = written;
    const KeptBytes read = read_kept(fd.get(), log, at, 65536);
    missing += read.offset - at;
    at = read.offset;
    for (std::string_view left = read.bytes; !left.empty();) {
      const std::string line = line_of(at / kLine).substr(at % kLine, left.size());
      right += left.starts_with(line) ? line.size() : 0;
      left.remove_prefix(line.size());
      at += line.size();
    }
    if (read.bytes.empty() && last) break;
  }
  writer.join();
  releases.join();
  CHECK(at == size_of(log));
  CHECK(right + missing == at);
}

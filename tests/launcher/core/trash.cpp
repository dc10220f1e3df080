#include "launcher/core/trash.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mount.h>

#include <chrono>
#include <thread>

#include "launcher/core/error.hpp"
#include "tests/support/own_mounts.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

void make_tree(const fs::path& root, int folders, int files) {
  for (int folder = 0; folder < folders; ++folder) {
    const fs::path below = root / std::to_string(folder);
    fs::create_directories(below);
    for (int file = 0; file < files; ++file) {
      write_all(open_file(below / std::to_string(file), O_WRONLY | O_CREAT).get(), "x");
    }
  }
}

bool wait_empty(const fs::path& folder) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!fs::is_empty(folder)) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

TEST_CASE("trash: what is taken is gone at once, and unlinked in the end") {
  const testing::TemporaryFolder folder;
  make_tree(folder / "job", 20, 50);
  fs::create_directory(folder / "outside");
  make_tree(folder / "outside", 1, 1);
  fs::create_directory_symlink(folder / "outside", folder / "job" / "link");
  Trash trash(folder / "trash");
  trash.take(folder / "job");
  CHECK_FALSE(fs::exists(folder / "job"));
  // The same name again, while the first may still lie there.
  make_tree(folder / "job", 1, 1);
  trash.take(folder / "job");
  trash.take(folder / "job");  // nothing there: fine
  CHECK(wait_empty(folder / "trash"));
  CHECK(fs::exists(folder / "outside" / "0" / "0"));  // a link is not followed
}

TEST_CASE("trash: of a link only the link goes") {
  const testing::TemporaryFolder folder;
  fs::create_directory(folder / "outside");
  make_tree(folder / "outside", 1, 1);
  fs::create_directory_symlink(folder / "outside", folder / "job");
  Trash trash(folder / "trash");
  trash.take(folder / "job");
  CHECK(wait_empty(folder / "trash"));
  CHECK_FALSE(fs::is_symlink(folder / "job"));
  CHECK(fs::exists(folder / "outside" / "0" / "0"));
}

TEST_CASE("trash: what a dead process left is unlinked by the next") {
  const testing::TemporaryFolder folder;
  make_tree(folder / "trash" / "job.0123", 3, 3);
  const Trash trash(folder / "trash");
  CHECK(wait_empty(folder / "trash"));
}

TEST_CASE("trash: a process that ends does not wait until all is unlinked") {
  const testing::TemporaryFolder folder;
  make_tree(folder / "job", 20, 200);
  std::size_t left = 0;
  { Trash(folder / "trash").take(folder / "job"); }
  for (const auto& entry : fs::recursive_directory_iterator(folder / "trash")) {
    left += entry.is_regular_file() ? 1U : 0U;
  }
  CHECK(left > 0);
  const Trash next(folder / "trash");
  CHECK(wait_empty(folder / "trash"));
}

TEST_CASE("what is mounted in a tree stays, and so does the tree") {
  testing::with_own_mounts([] {
    const testing::TemporaryFolder folder;
    const auto refusal = [](const auto& remove) {
      try {
        remove();
        return std::string();
      } catch (const Error& error) {
        return error.message();
      }
    };
    make_tree(folder / "job", 2, 1);
    make_tree(folder / "outside", 1, 1);
    const fs::path place = folder / "job" / "my \\ data";
    fs::create_directory(place);
    fs::create_directory(folder / "job" / "my");
    fs::create_directory_symlink(folder.path(), folder / "link");
    testing::expect(
        ::mount((folder / "outside").c_str(), place.c_str(), nullptr, MS_BIND, nullptr) == 0,
        "a bind mount");
    Trash trash(folder / "trash");
    for (const std::string& said :
         {refusal([&] { remove_tree(folder / "job"); }), refusal([&] { remove_tree(place); }),
          refusal([&] { remove_tree(folder / "link" / "job"); }),
          refusal([&] { trash.take(folder / "job"); })}) {
      testing::expect(said.find("mounted at " + place.string()) != std::string::npos, said);
    }
    testing::expect(fs::exists(place / "0" / "0"), "the files that are mounted");
    testing::expect(fs::exists(folder / "job" / "1" / "0"), "the files beside them");
    remove_tree(folder / "job" / "my");  // a name that begins alike
    testing::expect(!fs::exists(folder / "job" / "my"), "only what is mounted below stays");

    // In the trash already, as of an agent that did not look.
    const fs::path left = folder / "trash" / "job.0123";
    make_folders(folder / "trash");
    fs::rename(folder / "job", left);
    {
      Trash next(folder / "trash");
      make_tree(folder / "other", 1, 1);
      next.take(folder / "other");
      const auto others = [&] {
        const std::vector<fs::path> entries = entries_of(folder / "trash");
        return entries.size() != 1 || entries.front() != left;
      };
      while (others()) std::this_thread::yield();
    }
    testing::expect(fs::exists(folder / "outside" / "0" / "0"), "the files that are mounted");
    testing::expect(fs::exists(left / "1" / "0"), "the files beside them, in the trash");

    testing::expect(::umount((left / place.filename()).c_str()) == 0, "umount");
    const Trash last(folder / "trash");
    testing::expect(wait_empty(folder / "trash"), "nothing is mounted: all goes");
    testing::expect(fs::exists(folder / "outside" / "0" / "0"), "what was mounted");
  });
}

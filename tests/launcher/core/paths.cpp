#include "launcher/core/paths.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <optional>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

// Sets an environment variable for a test; null unsets it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("the laptop's state: XDG_STATE_HOME, else HOME, else an error") {
  const Variable home("HOME", "/home/ada");
  {
    const Variable xdg("XDG_STATE_HOME", "/state");
    CHECK(paths::cluster_state("c") == "/state/dtrain/clusters/c");
  }
  {
    const Variable xdg("XDG_STATE_HOME", "relative");  // the XDG text says: ignore it
    CHECK(paths::state_home() == "/home/ada/.local/state/dtrain");
  }
  const Variable xdg("XDG_STATE_HOME", nullptr);
  const Variable no_home("HOME", nullptr);
  CHECK_THROWS_AS(paths::state_home(), Error);
}

TEST_CASE("an attempt's files") {
  const paths::AttemptRoot root = paths::attempt({"/n"}, JobId("j-abcdef"), 2);
  CHECK(root.root == "/n/jobs/j-abcdef/attempt-2");
  CHECK(root.out(3) == "/n/jobs/j-abcdef/attempt-2/ranks/3.out");
  CHECK(root.error_file(3) == "/n/jobs/j-abcdef/attempt-2/errors/3.json");
}

TEST_CASE("sockets lie in a private folder of the root's own, and their paths are short") {
  const dtrain::testing::TemporaryFolder folder;
  const fs::path one = paths::socket_folder(folder / "one");
  CHECK(one != paths::socket_folder(folder / "two"));
  CHECK(one == paths::socket_folder(folder / "x/../one"));
  struct stat status {};
  REQUIRE(::lstat(one.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  const JobId longest(std::string(56, 'x') + "-abcdef");
  CHECK(paths::report_socket(folder / "one", longest, 9999, 9999).string().size() < 108);
  fs::remove(paths::socket_folder(folder / "one"));
  fs::remove(paths::socket_folder(folder / "two"));
}

TEST_CASE("sockets lead back to a root that is there, so that they are known for its own") {
  const dtrain::testing::TemporaryFolder folder;
  fs::create_directory(folder / "root");
  const fs::path sockets = paths::socket_folder(folder / "root/../root");
  CHECK(sockets.parent_path() == paths::socket_folders());
  CHECK(fs::read_symlink(paths::root_link(sockets)) == folder / "root");
  CHECK(paths::socket_folder(folder / "root") == sockets);  // twice is as good
  remove_tree(sockets);
}

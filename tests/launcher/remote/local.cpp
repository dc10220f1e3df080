#include "launcher/remote/local.hpp"

#include <sys/socket.h>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("run: stdin, stdout, stderr and the exit code") {
  LocalTransport transport;
  const Captured captured =
      transport.run({"/bin/sh", "-c", "cat; echo no >&2; exit 3"}, "hello", seconds(10));
  CHECK(captured.exit.code == 3);
  CHECK(captured.out == "hello");
  CHECK(captured.err == "no\n");
  CHECK_THROWS_AS(transport.run({"/no/such/program"}, {}, seconds(10)), Error);
}

TEST_CASE("run: past its deadline is an error that names the command") {
  LocalTransport transport;
  try {
    transport.run({"/bin/sleep", "1000"}, {}, milliseconds(50));
    FAIL("it ended");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(std::string(error.what()).find("/bin/sleep 1000") != std::string::npos);
  }
}

TEST_CASE("run_or_throw: the last lines of what it said, printable") {
  LocalTransport transport;
  CHECK(run_or_throw(transport, {"/bin/echo", "x"}, {}, seconds(10), "saying x") == "x\n");
  const std::string script = "printf '1\\n2\\n3\\n4\\n5\\n\\033[2J6\\n' >&2; exit 1";
  try {
    run_or_throw(transport, {"/bin/sh", "-c", script}, {}, seconds(10), "counting");
    FAIL("it succeeded");
  } catch (const Error& error) {
    CHECK(error.message() == "counting failed with exit code 1: 2 | 3 | 4 | 5 | \\x1b[2J6");
  }
}

TEST_CASE("put: whole, with its mode, folders made") {
  const testing::TemporaryFolder folder;
  LocalTransport transport;
  const fs::path file = folder.path() / "a/b/file";
  transport.put("content", file, 0600);
  transport.put("other", file, 0600);
  CHECK(read_file(file) == "other");
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(::stat(file.parent_path().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
}

TEST_CASE("local: a channel is a program's stdio, its errors and its exit") {
  LocalTransport here;
  const auto channel = here.open({"/bin/sh", "-c", "cat; echo trouble >&2; exit 3"});
  write_all(channel->fd(), "hello\n");
  ::shutdown(channel->fd(), SHUT_WR);
  std::string out(6, '\0');
  REQUIRE(::recv(channel->fd(), out.data(), out.size(), MSG_WAITALL) == 6);
  CHECK(out == "hello\n");
  CHECK(channel->wait(std::chrono::seconds(10)) == 3);
  CHECK(channel->errors() == "trouble\n");
}

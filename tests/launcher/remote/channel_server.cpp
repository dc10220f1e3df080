#include "launcher/remote/channel_server.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <atomic>

#include <array>
#include <stdexcept>
#include <string>

#include "launcher/core/error.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/remote/local.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

UniqueFd connect_to(const fs::path& path) {
  UniqueFd fd = dial_unix(path);
  REQUIRE(fd);
  return fd;
}

void send_text(const UniqueFd& fd, const std::string& text) {
  REQUIRE(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(text.size()));
}

// To its end, or `size` bytes.
std::string read_text(const UniqueFd& fd, std::size_t size = std::string::npos) {
  std::string text;
  std::array<char, 65536> buffer{};
  while (text.size() < size) {
    const ssize_t got =
        ::recv(fd.get(), buffer.data(), std::min(buffer.size(), size - text.size()), 0);
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

TEST_CASE("each connection is a program of its own, both ways and with its end") {
  const testing::TemporaryFolder folder;
  LocalTransport here;
  const ChannelServer server(folder.path() / "s", [&] {
    return here.open({"/bin/sh", "-c", "cat; echo end"});
  });
  const UniqueFd first = connect_to(server.path());
  const UniqueFd second = connect_to(server.path());
  send_text(first, "one");
  send_text(second, "two");
  CHECK(read_text(second, 3) == "two");
  CHECK(read_text(first, 3) == "one");
  ::shutdown(first.get(), SHUT_WR);
  CHECK(read_text(first) == "end\n");
  send_text(second, "more");
  CHECK(read_text(second, 4) == "more");
}

TEST_CASE("what does not fit between them waits, and nothing of it is lost") {
  const testing::TemporaryFolder folder;
  LocalTransport here;
  const ChannelServer server(folder.path() / "s", [&] {
    return here.open({"head", "-c", "20000000", "/dev/zero"});
  });
  const UniqueFd reader = connect_to(server.path());
  const UniqueFd slow = connect_to(server.path());
  CHECK(read_text(reader).size() == 20000000);
  CHECK(read_text(slow).size() == 20000000);
}

TEST_CASE("where no program starts the connection is hung up on, and the next is served") {
  const testing::TemporaryFolder folder;
  LocalTransport here;
  std::atomic<int> tries = 0;
  const ChannelServer server(folder.path() / "s", [&]() -> std::unique_ptr<Channel> {
    const int now = ++tries;
    if (now == 1) throw Error(ErrorCode::unreachable, "not now");
    if (now == 2) throw std::runtime_error("not now either");
    return here.open({"echo", "here"});
  });
  CHECK(read_text(connect_to(server.path())).empty());
  CHECK(read_text(connect_to(server.path())).empty());
  CHECK(read_text(connect_to(server.path())) == "here\n");
}

TEST_CASE("its end hangs up on all of them") {
  const testing::TemporaryFolder folder;
  LocalTransport here;
  std::optional<ChannelServer> server;
  server.emplace(folder.path() / "s", [&] { return here.open({"cat"}); });
  const UniqueFd held = connect_to(server->path());
  send_text(held, "x");
  CHECK(read_text(held, 1) == "x");
  server.reset();
  CHECK(read_text(held).empty());
  CHECK_FALSE(fs::exists(folder.path() / "s"));
}

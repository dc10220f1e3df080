#include "agent/supervise/control.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "agent/supervise/outbox.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

UniqueFd connect_to(const fs::path& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

struct Served {
  dtrain::testing::TemporaryFolder folder;
  boost::asio::io_context io;
  supervise::Outbox outbox;
  int changes = 0;
  supervise::Control control{
      io, folder / "s", "{}", outbox, {[](const wire::AttemptCommand&) {}, [this] { ++changes; }}};
};

}  // namespace

TEST_CASE("a client that is gone before it is sent what it waits for") {
  Served served;
  SUBCASE("before its hello") {
    connect_to(served.folder / "s").reset();
    served.io.poll();
  }
  SUBCASE("before the next event") {
    UniqueFd client = connect_to(served.folder / "s");
    served.io.poll();
    CHECK(served.control.connected());
    client.reset();
    served.outbox.push(wire::AttemptWarning{0, "something"});
    served.control.kick();
  }
  CHECK_FALSE(served.control.connected());
  CHECK(served.changes == 2);
  const UniqueFd next = connect_to(served.folder / "s");
  served.io.poll();
  CHECK(served.control.connected());
}

#include "agent/supervise/control.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "agent/supervise/outbox.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/support/patience.hpp"
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

// While it lives this process can open nothing more.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int next = UniqueFd(::dup(0)).get();
    REQUIRE(next >= 0);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

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

TEST_CASE("a client that no descriptor is left for is let wait, and taken once there is one") {
  Served served;
  const UniqueFd client = connect_to(served.folder / "s");
  std::size_t handled = 0;
  const auto begin = std::chrono::steady_clock::now();
  {
    const NoDescriptors none;
    constexpr int kLooks = 200;
    for (int i = 0; i < kLooks; ++i) handled += served.io.poll_one();
  }
  const auto pauses = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(100);
  CHECK(handled > 0);
  // One try, and one behind each pause; who makes none handles something at each look.
  CHECK(handled <= 2 * (static_cast<std::size_t>(pauses) + 1));
  CHECK_FALSE(served.control.connected());
  const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (!served.control.connected() && std::chrono::steady_clock::now() < until) {
    served.io.run_one_until(until);
  }
  CHECK(served.control.connected());
}

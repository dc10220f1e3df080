#include "trainer/train/group_store.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "trainer/core/files.hpp"

using namespace dtrain::train;
using std::chrono::milliseconds;
using std::chrono::minutes;

namespace {

// A port of loopback that is taken, and where nothing listens yet.
struct Port {
  FileDescriptor fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  int number = 0;

  Port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(fd.get(), any, size) == 0);
    REQUIRE(::getsockname(fd.get(), any, &size) == 0);
    number = ntohs(address.sin_port);
  }
  bool was_looked_at() const {
    return FileDescriptor(::accept(fd.get(), nullptr, nullptr)).valid();
  }
};

}  // namespace

TEST_CASE("a rank that comes before rank 0 listens waits for that") {
  const Port port;
  std::thread waits([&] { wait_until_listening("127.0.0.1", port.number, 4, minutes(10)); });
  REQUIRE(::listen(port.fd.get(), 8) == 0);
  waits.join();
  CHECK(port.was_looked_at());
  // And does not where somebody listens already.
  wait_until_listening("127.0.0.1", port.number, 1000, minutes(10));
  CHECK(port.was_looked_at());
}

TEST_CASE("what will not listen is not waited for longer than the limit, or not at all") {
  const Port port;
  const auto begin = std::chrono::steady_clock::now();
  wait_until_listening("127.0.0.1", port.number, 4, milliseconds(50));
  CHECK(std::chrono::steady_clock::now() - begin > milliseconds(20));
  wait_until_listening("no.such.host.invalid", 1, 4, minutes(10));
}

#include "launcher/remote/ssh/name_service.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using ssh::Person;

namespace {

// In PATH a `getent` of ours, which finds what `script` says; the machine's own is out of reach.
struct Getent {
  explicit Getent(const std::string& script) {
    write_file_atomic(folder.path() / "getent", "#!/bin/sh\n" + script, 0755);
    ::setenv("PATH", fs::absolute(folder.path()).c_str(), 1);
  }
  ~Getent() { ::setenv("PATH", before.c_str(), 1); }
  const std::string before = ::getenv("PATH");
  const dtrain::testing::TemporaryFolder folder;
};

// No label of DNS is so long: nobody is asked for it over the network.
const std::string kUnknown = std::string(64, 'n') + ".test";
constexpr uid_t kNobodys = 987654321;

std::vector<std::string> addresses(const std::string& name, int family) {
  std::vector<std::string> found;
  for (const ssh::Address& one : ssh::look_up(name, 22, family)) found.push_back(one.str());
  return found;
}

}  // namespace

TEST_CASE("numbers and the names of /etc/hosts need no other program") {
  const Getent none("exit 2\n");
  CHECK(addresses("127.0.0.7", AF_UNSPEC) == std::vector<std::string>{"127.0.0.7"});
  CHECK(addresses("::1", AF_UNSPEC) == std::vector<std::string>{"::1"});
  CHECK(addresses("localhost", AF_INET) == std::vector<std::string>{"127.0.0.1"});
  const auto one = ssh::look_up("127.0.0.7", 22, AF_INET).front();
  CHECK(ntohs(reinterpret_cast<const sockaddr_in*>(one.get())->sin_port) == 22);
}

TEST_CASE("a host that files and DNS do not know is asked of getent") {
  const Getent getent(
      "[ \"$*\" = 'ahosts -- " + kUnknown +
      "' ] || exit 1\n"
      "echo '127.0.0.8       STREAM x'\necho '127.0.0.8       DGRAM'\n"
      "echo '127.0.0.9       STREAM'\necho '::2             STREAM'\necho nonsense\n");
  CHECK(addresses(kUnknown, AF_UNSPEC) ==
        std::vector<std::string>{"127.0.0.8", "127.0.0.9", "::2"});
  CHECK(addresses(kUnknown, AF_INET6) == std::vector<std::string>{"::2"});
}

TEST_CASE("a host that nobody knows is an error with its name") {
  const Getent none("exit 2\n");
  CHECK_THROWS_WITH_AS(ssh::look_up(kUnknown, 22, AF_UNSPEC),
                       doctest::Contains((kUnknown + " has no address").c_str()), Error);
}

TEST_CASE("who cannot be asked is not taken for one who knows nothing") {
  const Getent broken("echo the directory is away >&2; exit 1\n");
  CHECK_THROWS_WITH_AS(ssh::person(kNobodys), doctest::Contains("the directory is away"), Error);
  CHECK_THROWS_WITH_AS(ssh::look_up(kUnknown, 22, AF_UNSPEC),
                       doctest::Contains("the directory is away"), Error);
  const Getent slow("exec /bin/sleep 1000\n");
  CHECK_THROWS_WITH_AS(ssh::look_up(kUnknown, 22, AF_UNSPEC, std::chrono::milliseconds(50)),
                       doctest::Contains("did not end within 50 ms"), Error);
}

TEST_CASE("people: the password file, then getent, then the number and $HOME") {
  CHECK(ssh::person(0).name == "root");
  {
    const Getent getent(
        "[ \"$*\" = 'passwd -- 987654321' ] && echo ann:x:987654321:1::/home/ann:/bin/sh\n");
    const Person ann = ssh::person(kNobodys);
    CHECK(ann.name == "ann");
    CHECK(ann.home == "/home/ann");
  }
  const Getent none("exit 2\n");
  const std::string home = ::getenv("HOME");
  ::setenv("HOME", "/home/of-variable", 1);
  const Person nobody = ssh::person(kNobodys);
  ::setenv("HOME", home.c_str(), 1);
  CHECK(nobody.name == "987654321");
  CHECK(nobody.home == "/home/of-variable");
}

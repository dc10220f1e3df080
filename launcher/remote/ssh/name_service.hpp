#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

// Names of hosts and people as this machine knows them. A static program that loads modules of the
// name service (mdns4_minimal, sss, compat) loads the machine's C library beside its own, and
// aborts where that is another one. So ours asks files and DNS alone, from the program's start on
// and for libssh too; whoever these do not know is asked of the machine's own program `getent`.
namespace dtrain::ssh {

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
  int family() const noexcept { return bytes.ss_family; }
  std::string str() const;  // in numbers, without the port
};

// Where a stream to `name` may go, best first, never none. AF_UNSPEC: both families. getent has
// `limit` to answer, at most 10 s. Throws Error(unreachable).
std::vector<Address> look_up(const std::string& name, int port, int family,
                             std::chrono::milliseconds limit = std::chrono::seconds(10));

struct Person {
  std::string name;  // the number where nobody knows a name
  std::string home;  // as OpenSSH, the password file's, not $HOME, which is for those without one
};
// Throws Error(timeout, failed) when getent cannot tell.
Person person(uid_t uid);

}  // namespace dtrain::ssh

#include "trainer/train/group_store.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kMostRanks = 1000;
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};
constexpr microseconds kPauseOfRank{100};  // times their number: at least that between two looks
constexpr std::chrono::seconds kAskAgain{1};
constexpr milliseconds kConnect{1000};        // to a host that answers nothing
constexpr std::chrono::seconds kLookFor{10};  // then c10d goes on, which says what it waits for

// The listening socket for the store, if the launcher holds one for this rank.
std::optional<int> listening_fd(const Environment& env) {
  if (!env.master_listen_fd) return std::nullopt;
  const int fd = *env.master_listen_fd;
  const std::string name = "DTRAIN_MASTER_LISTEN_FD=" + std::to_string(fd);
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
    throw Error(name + " is not a stream socket that this process has inherited");
  }
  if (::listen(fd, SOMAXCONN) != 0) throw errno_error("cannot listen on " + name, errno);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // programs that this one starts have no business with it
  return fd;
}

// 0 for a connection that is made, else its errno.
int try_to_connect(const addrinfo& address) {
  const FileDescriptor fd(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  // What this leaves behind must not keep rank 0 from the port.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd event{fd.get(), POLLOUT, 0};
    if (::poll(&event, 1, static_cast<int>(kConnect.count())) <= 0) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
    if (error != 0) return error;
  }
  // Where nobody listens the kernel may give this end the same port: it is connected to itself.
  sockaddr_storage ours{};
  sockaddr_storage theirs{};
  socklen_t size = sizeof ours;
  socklen_t their_size = sizeof theirs;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&ours), &size) == 0 &&
      ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&theirs), &their_size) == 0 &&
      size == their_size && std::memcmp(&ours, &theirs, size) == 0) {
    return ECONNREFUSED;
  }
  return 0;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return {found, ::freeaddrinfo};
}

}  // namespace

void wait_until_listening(const std::string& host, int port, int ranks, milliseconds limit) {
  if (ranks > kMostRanks) return;
  const auto until = std::chrono::steady_clock::now() + limit;
  const microseconds least = std::max<microseconds>(kFirstPause, kPauseOfRank * ranks);
  microseconds pause = least;
  Addresses addresses = addresses_of(host, port);
  auto asked = std::chrono::steady_clock::now();
  while (true) {
    bool refused = false;
    for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
      const int error = try_to_connect(*each);
      if (error == 0) return;
      refused = refused || error == ECONNREFUSED;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!refused || now + pause >= until) return;
    std::this_thread::sleep_for(pause);
    pause = std::max(least, std::min<microseconds>(pause * 3 / 2, kLongestPause));
    // The name may come to mean another host, where rank 0 begins anew.
    if (now - asked >= kAskAgain) {
      addresses = addresses_of(host, port);
      asked = now;
    }
  }
}

c10::intrusive_ptr<c10d::TCPStore> open_group_store(const Environment& env,
                                                    milliseconds join_timeout) {
  c10d::TCPStoreOptions store;
  store.port = env.master_port;
  store.isServer = env.rank == 0 && !env.agent_store;
  store.numWorkers = static_cast<std::size_t>(env.world_size);
  store.waitWorkers = !env.agent_store;
  store.timeout = join_timeout;
  store.masterListenFd = listening_fd(env);
  // libuv's server answers an order of magnitude more clients; both take the fd.
  store.useLibUV = true;
  if (!store.isServer) {
    wait_until_listening(env.master_addr, env.master_port, env.world_size,
                         std::min<milliseconds>(join_timeout, kLookFor));
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(env.master_addr, store);
  } catch (const c10::Error& error) {
    throw Error("cannot " + std::string(store.isServer ? "open" : "reach") +
                " the group's store at " + env.master_addr + ":" + std::to_string(env.master_port) +
                " as rank " + std::to_string(env.rank) + " of " + std::to_string(env.world_size) +
                ": " + error.what_without_backtrace());
  }
}

}  // namespace dtrain::train

#include "agent/supervise/unix_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::supervise {
namespace {

sockaddr_un address_of(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.string().size() >= sizeof address.sun_path) {
    throw Error(ErrorCode::invalid, "the path of a socket is too long: " + path.string());
  }
  std::memcpy(address.sun_path, path.c_str(), path.string().size() + 1);
  return address;
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw errno_error("cannot make a socket", errno);
  return fd;
}

}  // namespace

UniqueFd listen_unix(const fs::path& path) {
  const sockaddr_un address = address_of(path);
  UniqueFd fd = make_socket();
  ::unlink(path.c_str());
  // Nobody can come before listen, so the mode is right before it matters.
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), 128) != 0) {
    throw errno_error("cannot listen at " + path.string(), errno);
  }
  return fd;
}

std::optional<UniqueFd> accept_own(int listener) {
  while (true) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return std::nullopt;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
        (peer.uid == ::geteuid() || peer.uid == 0)) {
      return fd;
    }
    log::warn("another user at a socket was refused",
              {{"uid", std::to_string(peer.uid)}, {"pid", std::to_string(peer.pid)}});
  }
}

std::optional<UniqueFd> connect_unix(const fs::path& path) {
  const sockaddr_un address = address_of(path);
  UniqueFd fd = make_socket();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return fd;
  }
  if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN) return std::nullopt;
  throw errno_error("cannot connect to " + path.string(), errno);
}

}  // namespace dtrain::supervise

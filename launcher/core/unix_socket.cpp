#include "launcher/core/unix_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain {
namespace {

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Address address_of(const fs::path& path) {
  Address made{{}, sizeof made.address};
  made.address.sun_family = AF_UNIX;
  if (!fits_socket(path)) {
    throw Error(ErrorCode::invalid, "the path of a socket is too long: " + path.string());
  }
  std::memcpy(made.address.sun_path, path.c_str(), path.native().size() + 1);
  return made;
}

Address abstract_address(const std::string& name) {
  Address made;
  made.address.sun_family = AF_UNIX;
  if (name.size() >= sizeof made.address.sun_path) {
    throw Error(ErrorCode::invalid, "the name of a socket is too long: " + name);
  }
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

constexpr int kMostRefused = 64;  // in one look

// Whether the other end is this user's, or root's.
bool is_own(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (known && (peer.uid == ::geteuid() || peer.uid == 0)) return true;
  static std::set<uid_t> told;  // who comes often fills no log
  if (told.insert(peer.uid).second) {
    log::warn("another user at a socket was refused",
              {{"uid", std::to_string(peer.uid)}, {"pid", std::to_string(peer.pid)}});
  }
  return false;
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw errno_error("cannot make a socket", errno);
  return fd;
}

std::optional<UniqueFd> connect_to(const Address& there, const std::string& name) {
  UniqueFd fd = make_socket();
  if (::connect(fd.get(), there.get(), there.size) == 0) return fd;
  if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN) return std::nullopt;
  throw errno_error("cannot connect to " + name, errno);
}

}  // namespace

bool fits_socket(const fs::path& path) {
  return path.native().size() < sizeof sockaddr_un::sun_path;
}

UniqueFd listen_unix(const fs::path& path) {
  const Address here = address_of(path);
  UniqueFd fd = make_socket();
  ::unlink(path.c_str());
  // Nobody can come before listen, so the mode is right before it matters.
  if (::bind(fd.get(), here.get(), here.size) != 0 || ::chmod(path.c_str(), 0600) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw errno_error("cannot listen at " + path.string(), errno);
  }
  return fd;
}

UniqueFd listen_abstract(const std::string& name) {
  const Address here = abstract_address(name);
  UniqueFd fd = make_socket();
  // As many wait as may come at once.
  if (::bind(fd.get(), here.get(), here.size) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
  if (errno == EADDRINUSE) throw Error(ErrorCode::conflict, "somebody has the socket " + name);
  throw errno_error("cannot listen at " + name, errno);
}

std::optional<UniqueFd> accept_own(int listener) {
  for (int refused = 0; refused < kMostRefused;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return std::nullopt;
      throw errno_error("cannot take a connection", errno);
    }
    if (is_own(fd.get())) return fd;
    ++refused;
  }
  return std::nullopt;
}

std::optional<UniqueFd> connect_unix(const fs::path& path) {
  return connect_to(address_of(path), path.string());
}

UniqueFd dial_unix(const fs::path& path, int* error) {
  const auto failed = [error](int why) {
    if (error != nullptr) *error = why;
    return UniqueFd();
  };
  if (path.empty()) return failed(ENOENT);
  if (!fits_socket(path)) return failed(ENAMETOOLONG);
  const Address there = address_of(path);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return failed(errno);
  while (::connect(fd.get(), there.get(), there.size) != 0) {
    if (errno != EINTR) return failed(errno);
  }
  return fd;
}

std::optional<UniqueFd> connect_abstract(const std::string& name) {
  auto fd = connect_to(abstract_address(name), name);
  return fd && is_own(fd->get()) ? std::move(fd) : std::nullopt;
}

}  // namespace dtrain

#include "launcher/remote/ssh/reach.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/connection.hpp"
#include "launcher/remote/ssh/name_service.hpp"

namespace dtrain::ssh {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectLimit{10};
constexpr std::size_t kSaidKept = 2048;

void bind_to(int fd, const std::string& from, int family) {
  const Address address = look_up(from, 0, family).front();
  if (::bind(fd, address.get(), address.size) != 0) {
    throw errno_error("cannot connect from BindAddress " + from, errno);
  }
}

// 0, or errno; ETIMEDOUT when it took too long.
int connect_one(int fd, const Address& address, const Deadline& deadline,
                steady_clock::time_point until) {
  if (::connect(fd, address.get(), address.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  while (true) {
    deadline.check_stop();
    if (deadline.passed() || steady_clock::now() >= until) return ETIMEDOUT;
    pollfd waiting{fd, POLLOUT, 0};
    if (::poll(&waiting, 1, deadline.slice(until)) <= 0) continue;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }
}

}  // namespace

UniqueFd connect_tcp(const Settings& settings, const Deadline& deadline) {
  const auto addresses =
      look_up(settings.hostname, settings.port, settings.address_family, deadline.left());
  const auto until =
      steady_clock::now() + settings.connect_timeout.value_or(
                                std::chrono::duration_cast<std::chrono::seconds>(kConnectLimit));
  int worst = 0;
  std::string said;
  for (const Address& one : addresses) {
    UniqueFd fd(::socket(one.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    if (!settings.bind_address.empty()) bind_to(fd.get(), settings.bind_address, one.family());
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    const int error = connect_one(fd.get(), one, deadline, until);
    if (error == 0) return fd;
    if (worst == 0 || error != ECONNREFUSED) worst = error;
    if (!said.empty()) said += "; ";
    said += one.str() + " port " + std::to_string(settings.port) + ": " + std::strerror(error);
    if (error == ETIMEDOUT) break;
  }
  if (worst == ECONNREFUSED) throw Refused{said};
  if (worst == ETIMEDOUT) throw Error(ErrorCode::timeout, "cannot connect: " + said);
  throw Error(ErrorCode::unreachable, "cannot connect: " + said);
}

UniqueFd start_proxy(const Settings& settings, Carrier& carrier) {
  // A session of its own: a Ctrl-C is ours to deal with.
  carrier.proxy = std::make_unique<PipedChild>(
      std::vector<std::string>{"/bin/sh", "-c", "exec " + settings.proxy_command}, true, kSaidKept);
  ::fcntl(carrier.proxy->stdio.get(), F_SETFL, O_NONBLOCK);
  return std::move(carrier.proxy->stdio);
}

std::string Carrier::proxy_said() const {
  if (!proxy) return {};
  std::string line = join(split(proxy->errors(), '\n'), " ");
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return printable(line, false);
}

}  // namespace dtrain::ssh

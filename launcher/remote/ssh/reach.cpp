#include "launcher/remote/ssh/reach.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "launcher/core/process.hpp"
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
  const auto addresses = look_up(settings.hostname, settings.port, settings.address_family);
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
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw errno_error("cannot make a socket pair", errno);
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  carrier.proxy_errors.reset(pipe[0]);
  const UniqueFd errors(pipe[1]);
  ::fcntl(carrier.proxy_errors.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "exec " + settings.proxy_command};
  options.env = current_environment();
  options.stdin_fd = theirs.get();
  options.stdout_fd = theirs.get();
  options.stderr_fd = errors.get();
  options.new_session = true;  // a Ctrl-C is ours to deal with
  carrier.proxy = spawn(options);
  return ours;
}

Carrier& Carrier::operator=(Carrier&& other) noexcept {
  std::swap(via, other.via);
  std::swap(proxy, other.proxy);
  std::swap(proxy_errors, other.proxy_errors);
  std::swap(said_, other.said_);
  return *this;
}

Carrier::~Carrier() {
  if (proxy <= 0) return;
  ::kill(-proxy, SIGTERM);  // it has a group of its own
  const auto until = steady_clock::now() + std::chrono::milliseconds(500);
  while (steady_clock::now() < until) {
    try {
      if (try_wait(proxy)) return;
    } catch (const Error&) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(-proxy, SIGKILL);
  int status = 0;
  ::waitpid(proxy, &status, 0);
}

std::string Carrier::proxy_said() {
  std::array<char, 1024> buffer{};
  ssize_t got = 0;
  while (proxy_errors && (got = ::read(proxy_errors.get(), buffer.data(), buffer.size())) > 0) {
    said_.append(buffer.data(), static_cast<std::size_t>(got));
    if (said_.size() > kSaidKept) said_.erase(0, said_.size() - kSaidKept);
  }
  if (proxy_errors && got == 0) proxy_errors.reset();
  std::string line = join(split(said_, '\n'), " ");
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return printable(line, false);
}

}  // namespace dtrain::ssh

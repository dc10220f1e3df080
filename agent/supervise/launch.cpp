#include "agent/supervise/launch.hpp"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/supervise/output.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"

namespace dtrain::supervise {
namespace {

void set_option(int fd, int level, int name, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) {
    throw errno_error("cannot prepare the master port", errno);
  }
}

// Binds any address of one family; false with errno set.
bool bind_any(int fd, int family, int port) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  const auto network_port = htons(static_cast<std::uint16_t>(port));
  if (family == AF_INET6) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = network_port;
    return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = network_port;
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw errno_error("cannot read the master port", errno);
  }
  // The port lies at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// A file that is there and yet "not found" lacks its interpreter or dynamic loader.
std::string advice(const wire::AttemptSpec& spec) {
  const fs::path program = fs::path(spec.workdir) / spec.command.front();
  struct stat status {};
  if (spec.shell || spec.command.front().find('/') == std::string::npos) return {};
  if (::stat(program.c_str(), &status) != 0) return {};
  if (S_ISDIR(status.st_mode)) return " (it is a folder)";
  if (::access(program.c_str(), X_OK) != 0) return " (it is not executable)";
  return " (is the interpreter or dynamic loader that it names there?)";
}

Started start(const wire::AttemptSpec& spec, SpawnOptions options, bool one_stream) {
  OutputPipe out = make_output_pipe();
  OutputPipe err = one_stream ? OutputPipe{} : make_output_pipe();
  options.workdir = spec.workdir;
  options.stdout_fd = out.writer.get();
  options.stderr_fd = one_stream ? out.writer.get() : err.writer.get();
  options.new_session = true;
  options.death_signal = SIGKILL;
  options.raise_limits = true;
  const pid_t pid = spawn(options);
  return {pid, std::move(out.reader), std::move(err.reader)};
}

}  // namespace

MasterPort bind_master(int port) {
  // Both families at once where there are both, as TCPStore does.
  for (const int family : {AF_INET6, AF_INET}) {
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) continue;
    if (bind_any(fd.get(), family, port)) {
      const int bound = port_of(fd.get());
      return {std::move(fd), bound};
    }
    const bool no_such_family = errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT;
    if (!no_such_family || family == AF_INET) {
      throw errno_error("cannot bind the master port " + std::to_string(port), errno);
    }
  }
  throw errno_error("cannot make a socket for the master port", errno);
}

Started start_rank(const wire::AttemptSpec& spec, std::vector<std::string> env, int master) {
  SpawnOptions options;
  options.argv = spec.command;
  if (spec.shell) options.argv = {"/bin/sh", "-c", spec.command.front()};
  options.env = std::move(env);
  if (master >= 0) options.inherit = {{master, kMasterListenFd}};
  try {
    return start(spec, std::move(options), false);
  } catch (Error& error) {
    throw Error(error.code(), error.message() + ", in folder " + spec.workdir + advice(spec));
  }
}

Started start_setup(const wire::AttemptSpec& spec, std::vector<std::string> env) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", spec.setup};
  options.env = std::move(env);
  return start(spec, std::move(options), true);
}

}  // namespace dtrain::supervise

#include "agent/supervise/launch.hpp"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/supervise/output.hpp"
#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/program.hpp"
#include "launcher/files/elf.hpp"

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

std::string path_of(const std::vector<std::string>& env) {
  for (const std::string& entry : env) {
    if (entry.starts_with("PATH=")) return entry.substr(5);
  }
  return {};
}

// Why the program could not be started, with what may have been meant; absent where nothing is seen
// of it.
std::optional<std::string> why_not(const wire::AttemptSpec& spec, const std::string& path) {
  const std::string& word = spec.command.front();
  const fs::path folder = spec.workdir;
  if (spec.shell) return std::nullopt;
  const auto file =
      word.find('/') == std::string::npos ? find_in_path(word, path) : std::optional(folder / word);
  if (!file) return why_not_in_path(word, folder, path);
  const auto why = why_not_startable(*file, word, Interpreters::here, path);
  return why ? why : why_not_loadable(*file);
}

Started start(const wire::AttemptSpec& spec, SpawnOptions options, int cgroup, bool one_stream) {
  OutputPipe out = make_output_pipe();
  OutputPipe err = one_stream ? OutputPipe{} : make_output_pipe();
  options.workdir = spec.workdir;
  options.stdout_fd = out.writer.get();
  options.stderr_fd = one_stream ? out.writer.get() : err.writer.get();
  options.new_session = true;
  options.death_signal = SIGKILL;
  options.raise_limits = true;
  const pid_t pid = cgroup::spawn(options, cgroup);
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

Started start_rank(const wire::AttemptSpec& spec, std::vector<std::string> env, int master,
                   int cgroup, const std::vector<int>& cpus) {
  SpawnOptions options;
  options.cpus = cpus;
  options.argv = spec.command;
  if (spec.shell) options.argv = {"/bin/sh", "-c", spec.command.front()};
  const std::string path = path_of(env);
  options.env = std::move(env);
  if (master >= 0) options.inherit = {{master, kMasterListenFd}};
  try {
    return start(spec, std::move(options), cgroup, false);
  } catch (const NotStartable& error) {
    std::error_code none;
    if (!fs::is_directory(spec.workdir, none)) throw;
    const std::string where = ", in folder " + spec.workdir;
    if (const auto why = why_not(spec, path)) {
      throw NotStartable(error.code(), "the program " + spec.command.front() + where + ", " + *why);
    }
    throw NotStartable(error.code(), error.message() + where);
  } catch (const Error& error) {
    throw Error(error.code(), error.message() + ", in folder " + spec.workdir);
  }
}

Started start_setup(const wire::AttemptSpec& spec, std::vector<std::string> env, int cgroup) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", spec.setup};
  options.env = std::move(env);
  return start(spec, std::move(options), cgroup, true);
}

}  // namespace dtrain::supervise

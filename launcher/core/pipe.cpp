#include "launcher/core/pipe.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "launcher/core/error.hpp"

namespace dtrain {

std::array<UniqueFd, 2> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::array<UniqueFd, 2> make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw errno_error("cannot make a socket pair", errno);
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace dtrain
